//! Events by kind, to compare what two levels tell.

use cofi_flow::Event;
use std::collections::BTreeMap;

/// The kind of an event, and it without what code alone tells: where a PTWRITE without FUP stood, and whether tracing goes on where a branch
/// led to that switched it off without saying where.
fn plain(event: Event) -> (&'static str, Event) {
    match event {
        Event::Enabled { ip, .. } => {
            let resumed = false;
            ("enabled", Event::Enabled { ip, resumed })
        }
        Event::Ptwrite { payload, size, .. } => {
            let ip = None;
            ("ptwrite", Event::Ptwrite { ip, payload, size })
        }
        Event::Disabled { .. } => ("disabled", event),
        Event::AsyncBranch { .. } => ("async branch", event),
        Event::AsyncDisabled { .. } => ("async disabled", event),
        Event::Paging { .. } => ("paging", event),
        Event::Overflow { .. } => ("overflow", event),
        Event::ExecMode { .. } => ("mode", event),
        Event::Tsx { .. } => ("tsx", event),
        Event::Stop => ("stop", event),
        Event::Vmcs { .. } => ("vmcs", event),
        Event::ExStop { .. } | Event::Mwait { .. } | Event::Pwre { .. } | Event::Pwrx { .. } => {
            ("power", event)
        }
        Event::Control { .. } | Event::EventData { .. } => ("event trace", event),
        Event::Block { .. } | Event::BlockItem { .. } => ("block", event),
        event => ("other", event),
    }
}

pub fn sort(events: impl Iterator<Item = Event>) -> BTreeMap<&'static str, Vec<Event>> {
    let mut kinds = BTreeMap::<_, Vec<_>>::new();
    for (kind, event) in events.map(plain) {
        kinds.entry(kind).or_default().push(event);
    }
    kinds
}
