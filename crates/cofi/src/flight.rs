//! `cofi record --last`, `--start-at`, `--stop-at`: which part of what runs is kept.

use crate::args::Engine;
use crate::function_names;
use crate::size;
use anyhow::{Result, bail};
use clap::Args;
use cofi_capture::record::{Gate, Window};
use cofi_perf::TraceConfig;

/// Which part of what runs is kept: a flight recorder's.
#[derive(Args, Clone, Default, Debug)]
pub(crate) struct FlightOptions {
    /// Keep only so many of the last bytes of packets of each thread (64K, 4M, …), in memory, and write them when the recording ends:
    /// a flight recorder. With ptrace and qemu; with hardware it is --snapshot.
    #[arg(long, value_name = "SIZE", value_parser = size::bytes)]
    pub(crate) last: Option<u64>,
    /// Begin to trace a process when a thread of it comes to this: `sym:NAME`, the first instruction of a function, or an address, 0x….
    /// With ptrace and qemu; with hardware, of a thread alone (--per-thread, --tid), or with -a and --cpu of each processor, at a function of the kernel.
    #[arg(long, value_name = "PLACE", value_parser = gate)]
    pub(crate) start_at: Option<Gate>,
    /// Cease to trace it when a thread comes to this; it may begin again.
    #[arg(long, value_name = "PLACE", value_parser = gate)]
    pub(crate) stop_at: Option<Gate>,
}

impl FlightOptions {
    /// The first of the options that is there.
    pub(crate) fn first(&self) -> Option<&'static str> {
        let all = [
            ("--last", self.last.is_some()),
            ("--start-at", self.start_at.is_some()),
            ("--stop-at", self.stop_at.is_some()),
        ];
        let mut all = all.into_iter();
        all.find_map(|(name, is_there)| is_there.then_some(name))
    }

    /// What of each process is traced, if not all.
    pub(crate) fn window(&self) -> Option<Window> {
        let mut window = Window::default();
        window.start.clone_from(&self.start_at);
        window.stop.clone_from(&self.stop_at);
        (window.start.is_some() || window.stop.is_some()).then_some(window)
    }

    /// Whether the engine and the configuration allow for what is asked.
    pub(crate) fn check(&self, engine: Engine, config: &TraceConfig) -> Result<()> {
        let Some(name) = self.first() else {
            return Ok(());
        };
        match engine {
            Engine::Auto | Engine::Ptrace | Engine::Qemu | Engine::Hardware => {}
            Engine::QemuSystem => {
                bail!("{name} is for programs, which the engines ptrace and qemu run")
            }
        }
        if self.last.is_none() {
            return Ok(());
        }
        match config {
            TraceConfig::Rtit(_) => bail!(
                "--last is for Intel PT: a PSB of RTIT does not say where control is, so nobody could prove what the last packets tell"
            ),
            TraceConfig::Pt(_) if config.is_timeless() => bail!(
                "--last needs the time (tsc=1): by it, records of code and names find their places among the packets that are kept"
            ),
            TraceConfig::Pt(_) => Ok(()),
        }
    }
}

/// `sym:NAME`, `0x401000` or `ip:0x401000`.
pub(crate) fn gate(text: &str) -> Result<Gate, String> {
    let wrong = || format!("{text:?} is none of sym:NAME, 0xADDRESS");
    if let Some(name) = text.strip_prefix("sym:").filter(|name| !name.is_empty()) {
        let name = name.to_owned();
        let is = function_names::symbol_is;
        return Ok(Gate::Function { name, is });
    }
    let digits = text.strip_prefix("ip:").unwrap_or(text);
    let digits = digits.strip_prefix("0x").ok_or_else(wrong)?;
    let address = u64::from_str_radix(digits, 16).map_err(|_| wrong())?;
    Ok(Gate::Address(address))
}

#[cfg(test)]
mod tests {
    use super::{Gate, gate};

    #[test]
    fn places_as_they_are_written() {
        assert!(matches!(gate("0x401000"), Ok(Gate::Address(0x40_1000))));
        assert!(matches!(gate("ip:0x10"), Ok(Gate::Address(0x10))));
        let function = gate("sym:a::b(int)");
        assert!(matches!(function, Ok(Gate::Function { name, .. }) if name == "a::b(int)"));
        for wrong in ["", "sym:", "main", "10", "0xg", "time:1"] {
            assert!(gate(wrong).is_err(), "{wrong}");
        }
    }
}
