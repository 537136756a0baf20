//! The trace unit, for teaching and tests.

use cofi_packet::{ExecMode, Ip};
use cofi_unit::spec::msr;
use cofi_unit::{
    At, Branch, Client, Clock, Context, Ctl, Destination, Event, Generation, Implementation,
    PhysAddr, Retired, SettingError, Unit,
};
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::{Mutex, MutexGuard, PoisonError};

pyo3::create_exception!(
    cofi,
    Fault,
    PyException,
    "What the processor raises where an access breaks a rule: #GP or #UD, with the rule."
);

pyo3::create_exception!(
    cofi,
    OutputLost,
    PyException,
    "The output of a trace unit does not hold all that was to be traced."
);

/// The world of a unit: a clock that its owner sets, and memory that is nothing but what was stored.
#[derive(Default)]
struct World {
    clock: Clock,
    stored: Vec<u8>,
}

impl Client for World {
    fn now(&mut self) -> Clock {
        self.clock
    }

    fn store(&mut self, _: PhysAddr, bytes: &[u8]) {
        self.stored.extend_from_slice(bytes);
    }
}

struct State {
    unit: Unit,
    world: World,
}

/// A processor's trace unit: told what retires and what happens, it makes the packets that the processor would.
///
/// Its output goes to one region of memory, of which only what was stored is kept.
#[pyclass(name = "Unit", module = "cofi", frozen)]
pub(crate) struct PyUnit(Mutex<State>);

impl PyUnit {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn mode(bits: u8) -> PyResult<ExecMode> {
    match bits {
        16 => Ok(ExecMode::Bits16),
        32 => Ok(ExecMode::Bits32),
        64 => Ok(ExecMode::Bits64),
        _ => Err(PyValueError::new_err(format!(
            "mode is {bits}, and must be 16, 32 or 64"
        ))),
    }
}

/// A register's address, by its name or as it is.
fn register(word: &Bound<'_, PyAny>) -> PyResult<u32> {
    if let Ok(address) = word.extract::<u32>() {
        return Ok(address);
    }
    let name: String = word.extract()?;
    let known = msr::ALL.iter().find(|spec| spec.name == name);
    known
        .map(|spec| spec.address)
        .ok_or_else(|| PyValueError::new_err(format!("there is no register {name:?}")))
}

fn fault(error: impl std::fmt::Display) -> PyErr {
    Fault::new_err(error.to_string())
}

fn context(cpl: u8, cr3: u64, bits: u8) -> PyResult<Context> {
    if cpl > 3 {
        return Err(PyValueError::new_err(format!(
            "cpl is {cpl}, and must be 0 to 3"
        )));
    }
    Ok(Context {
        cpl,
        cr3,
        mode: mode(bits)?,
        ..Context::default()
    })
}

/// Calls `set` with each name and value, as words.
fn each(
    settings: Option<&Bound<'_, PyDict>>,
    mut set: impl FnMut(&str, &str) -> Result<(), SettingError>,
) -> PyResult<()> {
    for (name, value) in settings.into_iter().flatten() {
        // (True and False are 1 and 0 in the words of settings.)
        let value = match value.extract::<bool>() {
            Ok(flag) => u8::from(flag).to_string(),
            Err(_) => value.str()?.to_string(),
        };
        let name: String = name.extract()?;
        set(&name, &value)
            .map_err(|error| PyValueError::new_err(format!("{name}={value}: {error}")))?;
    }
    Ok(())
}

#[pymethods]
impl PyUnit {
    #[new]
    #[pyo3(signature = (processor="skylake", *, cpl=3, cr3=0, mode=64, caps=None, options=None))]
    fn new(
        processor: &str,
        cpl: u8,
        cr3: u64,
        mode: u8,
        caps: Option<&Bound<'_, PyDict>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let generation = processor.parse::<Generation>().map_err(|error| {
            let names: Vec<_> = Generation::ALL.iter().map(|known| known.name()).collect();
            PyValueError::new_err(format!(
                "{processor:?}: {error}; known are {}",
                names.join(", ")
            ))
        })?;
        let mut all = generation.capabilities();
        each(caps, |name, word| all.set(name, word))?;
        let mut choices = Implementation::default();
        each(options, |name, word| choices.set(name, word))?;
        let unit = Unit::with(all, choices, context(cpl, cr3, mode)?);
        Ok(Self(Mutex::new(State {
            unit,
            world: World::default(),
        })))
    }

    /// Reads a register, by its name (`IA32_RTIT_CTL`) or address.
    fn rdmsr(&self, register: &Bound<'_, PyAny>) -> PyResult<u64> {
        let address = self::register(register)?;
        self.lock().unit.rdmsr(address).map_err(fault)
    }

    /// Writes a register, by an instruction at `ip` of `length` bytes.
    #[pyo3(signature = (register, value, *, ip=0, length=2))]
    fn wrmsr(&self, register: &Bound<'_, PyAny>, value: u64, ip: u64, length: u8) -> PyResult<()> {
        let address = self::register(register)?;
        let State { unit, world } = &mut *self.lock();
        unit.wrmsr(world, at(ip, length), address, value)
            .map_err(fault)
    }

    /// Sets the registers for a trace of user code into a region of 2 MiB, and TraceEn: `flags` are bits of IA32_RTIT_CTL beside TraceEn, User and BranchEn.
    #[pyo3(signature = (flags=0, *, ip=0))]
    fn start(&self, flags: u64, ip: u64) -> PyResult<()> {
        let State { unit, world } = &mut *self.lock();
        let ctl = Ctl(flags)
            .with_user(true)
            .with_branch_en(true)
            .with_trace_en(true);
        for (address, value) in [
            (msr::IA32_RTIT_OUTPUT_MASK_PTRS, 0x1f_ffff),
            (msr::IA32_RTIT_CTL, ctl.0),
        ] {
            unit.wrmsr(world, at(ip, 0), address, value)
                .map_err(fault)?;
        }
        Ok(())
    }

    /// The clock goes on to this time stamp counter, and to as many core cycles if these are not given.
    #[pyo3(signature = (tsc, cycles=None))]
    fn clock(&self, tsc: u64, cycles: Option<u64>) {
        let State { unit, world } = &mut *self.lock();
        // It must not run backwards.
        let tsc = tsc.max(world.clock.tsc);
        let cycles = cycles.unwrap_or(tsc).max(world.clock.cycles);
        world.clock = Clock { tsc, cycles };
        unit.clock(world);
    }

    /// An instruction at `ip` of `length` bytes retired: `kind` is `other`, `conditional`, `direct_jump`, `direct_call`, `indirect_jump`, `indirect_call` or `return`.
    /// `to` is where it led; a conditional branch without it was not taken.
    #[pyo3(signature = (ip, length, kind="other", to=None))]
    fn retire(&self, ip: u64, length: u8, kind: &str, to: Option<u64>) -> PyResult<()> {
        let to = to.map(Ip);
        let branch = match (kind, to) {
            ("other", None) => Branch::None,
            ("conditional", to) => Branch::Conditional(to),
            ("direct_jump", Some(to)) => Branch::DirectJump(to),
            ("direct_call", Some(to)) => Branch::DirectCall(to),
            ("indirect_jump", Some(to)) => Branch::IndirectJump(to),
            ("indirect_call", Some(to)) => Branch::IndirectCall(to),
            ("return", Some(to)) => Branch::Return(to),
            (
                "direct_jump" | "direct_call" | "indirect_jump" | "indirect_call" | "return",
                None,
            ) => {
                return Err(PyValueError::new_err(format!(
                    "{kind} must have `to`: where it led"
                )));
            }
            ("other", Some(_)) => {
                return Err(PyValueError::new_err("other leads nowhere: leave `to` out"));
            }
            _ => {
                return Err(PyValueError::new_err(format!(
                    "kind is {kind:?}, and is none of a near instruction"
                )));
            }
        };
        let State { unit, world } = &mut *self.lock();
        let at = at(ip, length);
        unit.retire(world, Retired { at, branch });
        Ok(())
    }

    /// A far branch at `ip` of `length` bytes (SYSCALL, SYSRET, IRET, …) led to `to`, where this holds.
    #[pyo3(signature = (ip, length, to, *, cpl, cr3=0, mode=64))]
    fn far_branch(
        &self,
        ip: u64,
        length: u8,
        to: u64,
        cpl: u8,
        cr3: u64,
        mode: u8,
    ) -> PyResult<()> {
        let to = destination(to, context(cpl, cr3, mode)?);
        let State { unit, world } = &mut *self.lock();
        let at = at(ip, length);
        unit.event(world, Event::FarBranch { at, to });
        Ok(())
    }

    /// An interrupt, exception or fault was taken at `ip`, with this vector, and led to `to`, where this holds.
    #[pyo3(signature = (ip, vector, to, *, cpl=0, cr3=0, mode=64, page_fault=None))]
    #[expect(clippy::too_many_arguments, reason = "they are named in Python")]
    fn interrupt(
        &self,
        ip: u64,
        vector: u8,
        to: u64,
        cpl: u8,
        cr3: u64,
        mode: u8,
        page_fault: Option<u64>,
    ) -> PyResult<()> {
        let to = destination(to, context(cpl, cr3, mode)?);
        let State { unit, world } = &mut *self.lock();
        let event = Event::Interrupt {
            from: Ip(ip),
            vector,
            page_fault,
            to,
        };
        unit.event(world, event);
        Ok(())
    }

    /// MOV to CR3 at `ip` retired.
    #[pyo3(signature = (ip, length, cr3))]
    fn mov_cr3(&self, ip: u64, length: u8, cr3: u64) {
        let State { unit, world } = &mut *self.lock();
        let at = at(ip, length);
        unit.event(world, Event::MovCr3 { at, cr3 });
    }

    /// The bytes that were stored since this was called last. What waits for its packet (results of branches) is stored later: clearing TraceEn sends all.
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.lock().world.stored)
    }

    /// Clears TraceEn, by an instruction at `ip`, and takes what was stored.
    #[pyo3(signature = (*, ip=0))]
    fn stop(&self, ip: u64) -> PyResult<Vec<u8>> {
        {
            let State { unit, world } = &mut *self.lock();
            let ctl = unit.rdmsr(msr::IA32_RTIT_CTL).map(Ctl).map_err(fault)?;
            let ctl = ctl.with_trace_en(false);
            unit.wrmsr(world, at(ip, 2), msr::IA32_RTIT_CTL, ctl.0)
                .map_err(fault)?;
        }
        Ok(self.take())
    }

    /// Raises OutputLost if the output has failed or stopped, or packets were lost, as far as the registers and the internal buffer know.
    fn check_output(&self) -> PyResult<()> {
        let checked = self.lock().unit.check_output();
        checked.map_err(|error| OutputLost::new_err(error.to_string()))
    }

    /// PacketEn: whether what retires now makes packets.
    #[getter]
    fn packet_en(&self) -> bool {
        self.lock().unit.packet_en()
    }

    fn __repr__(&self) -> String {
        let state = self.lock();
        let (is_on, stored) = (state.unit.in_use(), state.world.stored.len());
        let on = if is_on { 1 } else { 0 };
        format!("<Unit TraceEn={on}, {stored} bytes to take>")
    }
}

fn at(ip: u64, length: u8) -> At {
    At {
        ip: Ip(ip),
        next: Ip(ip.wrapping_add(length.into())),
    }
}

const fn destination(to: u64, context: Context) -> Destination {
    Destination {
        ip: Ip(to),
        context,
    }
}
