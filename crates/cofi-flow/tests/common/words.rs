//! Items and events as words, which cases compare.

use cofi_flow::{Event, Item, LocatedEvent};
use cofi_packet::Ip;

fn place(ip: Option<Ip>) -> String {
    ip.map_or("-".into(), |ip| format!("{:x}", ip.0))
}

/// An item as a word: instructions by their addresses.
pub(crate) fn word(item: &Item) -> String {
    match *item {
        Item::Insn(insn) => format!("{:x}", insn.ip.0),
        Item::Error(error) => format!("error({error})").replace(' ', "_"),
        Item::Event(event) => event_word(event),
    }
}

/// An event as a word.
pub(crate) fn event_word(event: Event) -> String {
    match event {
        Event::Enabled { ip, resumed: false } => format!("enabled:{:x}", ip.0),
        Event::Enabled { ip, resumed: true } => format!("resumed:{:x}", ip.0),
        Event::Disabled { ip } => format!("disabled:{}", place(ip)),
        Event::AsyncBranch { from, to } => format!("async:{:x}>{:x}", from.0, to.0),
        Event::AsyncDisabled { at, ip } => format!("asyncoff:{:x}>{}", at.0, place(ip)),
        Event::PagingEnabled { on } => format!("pg:{}", if on { "on" } else { "off" }),
        Event::Paging { cr3, nr } => format!("paging:{cr3:x}{}", if nr { ".nr" } else { "" }),
        Event::Overflow { ip } => format!("overflow:{}", place(ip)),
        Event::ExecMode { mode, .. } => format!("mode:{}", mode.bits()),
        Event::Tsx { state, ip } => format!("tsx:{state:?}@{}", place(ip)),
        Event::Stop => "stop".into(),
        Event::Vmcs { base } => format!("vmcs:{base:x}"),
        Event::ExStop { ip } => format!("exstop@{}", place(ip)),
        Event::Mwait { hints, .. } => format!("mwait:{hints:x}"),
        Event::Pwre { state, .. } => format!("pwre:{state:x}"),
        Event::Pwrx { last, .. } => format!("pwrx:{last:x}"),
        Event::Ptwrite { ip, payload, size } => {
            format!("ptwrite:{payload:x}/{size}@{}", place(ip))
        }
        Event::Control { event, vector, ip } => {
            format!(
                "{event:?}{}@{}",
                vector.map_or(String::new(), |v| format!(":{v}")),
                place(ip)
            )
        }
        Event::EventData { kind, payload } => format!("data:{kind}:{payload:x}"),
        Event::Block { kind, size, ip } => format!("block:{}/{size}@{}", kind.get(), place(ip)),
        Event::BlockItem { id, payload, .. } => format!("item:{id}:{payload:x}"),
        Event::Trigger { vector, ip, .. } => format!("trigger:{vector:x}@{}", place(ip)),
        Event::Resync { ip, lost } => format!("resync:{}+{lost:x}", place(ip)),
        Event::Maintenance { payload } => format!("mnt:{payload:x}"),
        Event::Target { ip } => format!(">{:x}", ip.0),
        Event::Branches { tnt } => tnt
            .iter()
            .map(|taken| if taken { "T" } else { "N" })
            .collect(),
        Event::Tick(tick) => tick.kind().name().into(),
        _ => "unknown".into(),
    }
}

/// Something told, as a word: the event, the address if the event itself has no place for it, the packets.
pub(crate) fn told_word(told: &LocatedEvent) -> String {
    match told.what {
        Err(error) => format!("error({error})").replace(' ', "_"),
        Ok(event) => {
            let bare = matches!(
                event,
                Event::Paging { .. }
                    | Event::PagingEnabled { .. }
                    | Event::ExecMode { .. }
                    | Event::Vmcs { .. }
                    | Event::Mwait { .. }
                    | Event::Pwre { .. }
                    | Event::Pwrx { .. }
                    | Event::EventData { .. }
                    | Event::BlockItem { .. }
            );
            let place = match (told.ip, bare) {
                (Some(ip), true) => format!("@{:x}", ip.0),
                (None, true) => "@-".into(),
                (_, false) => String::new(),
            };
            let packets = told.packets.to_string().replace(' ', "+");
            format!("{}{place}[{packets}]", event_word(event))
        }
    }
}

/// Word by word; `error(text)` wants an error that contains the text.
pub(crate) fn matches(found: &str, wanted: &str) -> bool {
    let (found, wanted): (Vec<_>, Vec<_>) =
        (found.split(' ').collect(), wanted.split(' ').collect());
    found.len() == wanted.len()
        && found.iter().zip(&wanted).all(|(found, wanted)| {
            match wanted
                .strip_prefix("error(")
                .and_then(|text| text.strip_suffix(')'))
            {
                Some(text) => found.starts_with("error(") && found.contains(text),
                None => found == wanted,
            }
        })
}
