//! PacketEn, said by the reference and not by the unit (2.1, 2.4.3, 2.6, 3.3.5, 4.2.11).

use cofi_packet::Ip;
use cofi_unit::rtit::{Context, Events};

/// Address ranges: first address, and the one behind the last.
pub type Ranges = Vec<(Ip, Ip)>;

/// Where FilterEn is set, or what stops tracing (Table 7).
#[derive(Clone, Debug, PartialEq, Eq)]
enum Where {
    /// Everywhere.
    Everywhere,
    /// Nowhere.
    Nowhere,
    /// In these.
    In(Ranges),
}

/// What decides whether packets are made.
#[derive(Clone, Debug)]
pub struct Enables {
    /// RTIT_CTL.Trace_En.
    pub trace_en: bool,
    /// RTIT_CTL.TraceActive.
    pub trace_active: bool,
    /// RTIT_CTL.OS.
    pub os: bool,
    /// RTIT_CTL.User.
    pub user: bool,
    /// RTIT_CTL.CR3En, and what CR3 must be then.
    pub cr3: Option<u64>,
    /// In SMM.
    pub smm: bool,
    /// In VMX root operation.
    pub root: bool,
    /// What runs.
    pub context: Context,
    /// FilterEn.
    pub filter_en: bool,
    filter: Where,
    stop: Where,
}

impl Enables {
    /// Everything off.
    #[must_use]
    pub fn new(context: Context) -> Self {
        Self {
            trace_en: false,
            trace_active: false,
            os: false,
            user: false,
            cr3: None,
            smm: false,
            root: false,
            context,
            filter_en: false,
            filter: Where::Everywhere,
            stop: Where::Nowhere,
        }
    }

    /// RTIT_EVENTS and RTIT_LIP0 to 3 were written.
    pub fn set_events(&mut self, events: Events, lips: [Ip; 4]) {
        let ranges = [(lips[0], lips[2]), (lips[1], lips[3])];
        let of = |id| match id {
            0 => Where::In(vec![ranges[0]]),
            1 => Where::In(vec![ranges[1]]),
            2 => Where::In(ranges.to_vec()),
            7 => Where::Everywhere,
            _ => Where::Nowhere,
        };
        self.filter = of(events.filter());
        self.stop = of(events.trace_stop());
    }

    /// The ranges of the filter and those that stop tracing.
    #[must_use]
    pub fn ranges(&self) -> [Ranges; 2] {
        [&self.filter, &self.stop].map(|it| match it {
            Where::In(ranges) => ranges.clone(),
            _ => Vec::new(),
        })
    }

    /// TriggerEn (2.1.1).
    #[must_use]
    pub fn trigger_en(&self) -> bool {
        self.trace_en && self.trace_active
    }

    /// ContextEn (2.1.2).
    #[must_use]
    pub fn context_en(&self) -> bool {
        let Context { cpl, cr3, .. } = self.context;
        let is_wrong_level = cpl == 0 && !self.os || cpl != 0 && !self.user;
        let is_wrong_space = self.cr3.is_some_and(|wanted| wanted != cr3);
        !(is_wrong_level || is_wrong_space || self.smm || self.root)
    }

    /// PacketEn (2.1).
    #[must_use]
    pub fn packet_en(&self) -> bool {
        self.trigger_en() && self.context_en() && self.filter_en
    }

    /// Control has come to `ip`, by a branch that was taken or an event if it `jumped`. Whether that meets TraceStop.
    pub fn come_to(&mut self, ip: Ip, jumped: bool) -> bool {
        // Frozen otherwise (2.1.3).
        if self.trace_en && self.context_en() {
            self.filter_en = match &self.filter {
                Where::Everywhere => true,
                Where::Nowhere => false,
                Where::In(ranges) => {
                    let inside = ranges.iter().any(|(from, to)| (*from..*to).contains(&ip));
                    let at_base = ranges.iter().any(|(from, _)| *from == ip);
                    let at_limit = ranges.iter().any(|(_, to)| *to == ip);
                    match () {
                        () if jumped => inside,
                        () if at_base => true,
                        () if at_limit => inside,
                        () => self.filter_en,
                    }
                }
            };
        }
        if !(self.trigger_en() && self.context_en()) {
            return false;
        }
        match &self.stop {
            Where::Everywhere => true,
            Where::Nowhere => false,
            Where::In(ranges) if jumped => {
                ranges.iter().any(|(from, to)| (*from..*to).contains(&ip))
            }
            Where::In(ranges) => ranges.iter().any(|(from, _)| *from == ip),
        }
    }

    /// The TraceStop action (4.2.11).
    pub fn stop(&mut self) {
        self.trace_active = false;
        self.filter_en = false;
    }
}
