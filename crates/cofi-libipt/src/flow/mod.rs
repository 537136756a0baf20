//! What the instruction decoder and the block decoder share: where control is, and which event comes next.

mod apply;
mod blocks;
pub mod capi;
mod errata;
mod insns;
mod ret_stack;
mod tick;
mod when;

use std::ffi::c_int;

use crate::boundary::{hand_out, take_back};
use crate::code::{Cursor, Entry, Flow, NONE, Step};
use crate::config::Config;
use crate::error::Error;
use crate::event::{Event, status};
use crate::image::{Asid, Image};
use crate::query::{Answer, Query};
use ret_stack::RetStack;
use tick::Ticks;

/// Follows control.
pub struct Walker {
    query: Query,
    /// The caller's image, or its own.
    image: *mut Image,
    /// From a box, which it is again when the walker is dropped.
    own_image: *mut Image,
    cursor: Cursor,
    /// Whether tracing is on.
    enabled: bool,
    speculative: bool,
    /// Neither is it speculative, nor are ticks wanted: what an instruction is told to be is what its entry holds.
    is_plain: bool,
    asid: Asid,
    ret_stack: RetStack,
    /// The next event, which was taken from the stream, and whether it is to be reported now.
    event: Option<Event>,
    due: bool,
    /// Events are due that bind to this instruction, behind which control then goes on.
    held: Option<Entry>,
    /// Types of events that bound to it, a bit each: a second one binds to a later instruction.
    bound: u32,
    /// The flags behind any instruction that needs no packet, as long as tracing is on and no event is known to come; negative else.
    calm: c_int,
    /// Instructions follow each other from where control is up to this entry, each leading to the one that is kept behind it and to no event, with the flags
    /// `at_hand` behind each; 0 if there are none.
    run_end: u32,
    at_hand: c_int,
    /// The block that begins where control is, if it is known, nothing is known to come before it, and no ticks are wanted.
    block: u32,
    /// Where tracing was disabled last.
    disabled_at: Option<u64>,
    end_on_call: bool,
    end_on_jump: bool,
    /// Neither of them: a block is as long as can be.
    whole_blocks: bool,
    /// Blocks may follow each other as they were linked: they are whole, and there are no ticks.
    links_blocks: bool,
    ticks: Ticks,
    /// Blocks are asked for, not instructions.
    by_blocks: bool,
}

/// What a question gave: the flags, or an error.
pub(crate) type Status = Result<c_int, Error>;

impl Walker {
    pub(crate) fn new(config: Config, by_blocks: bool) -> Self {
        let own_image = hand_out(Image::new(None));
        let ticks = Ticks::new(&config, by_blocks);
        let whole_blocks = config.flags[0] & 5 == 0;
        Self {
            query: Query::new(config),
            image: own_image,
            own_image,
            cursor: Cursor {
                ip: 0,
                mode: 0,
                entry: NONE,
                epoch: 0,
            },
            enabled: false,
            speculative: false,
            is_plain: !ticks.are_wanted(),
            asid: Asid::ANY,
            ret_stack: RetStack::default(),
            event: None,
            due: false,
            held: None,
            bound: 0,
            calm: -1,
            run_end: 0,
            at_hand: 0,
            block: NONE,
            disabled_at: None,
            end_on_call: config.flags[0] & 1 != 0,
            end_on_jump: config.flags[0] & 4 != 0,
            whole_blocks,
            links_blocks: by_blocks && whole_blocks && !ticks.are_wanted(),
            ticks,
            by_blocks,
        }
    }

    pub(crate) fn query(&self) -> &Query {
        &self.query
    }

    pub(crate) fn asid(&self) -> &Asid {
        &self.asid
    }

    pub(crate) fn set_image(&mut self, image: *mut Image) {
        self.image = match image.is_null() {
            true => self.own_image,
            false => image,
        };
        (self.run_end, self.block) = (0, NONE);
        self.cursor.entry = NONE;
        // (Behind an instruction to which events bind, control goes on in the new image, where the numbers of entries mean something else.)
        if let Some(entry) = &mut self.held {
            entry.forget_edges();
        }
    }

    pub(crate) fn image_pointer(&mut self) -> *mut Image {
        self.image
    }

    /// The image, with what must be changed beside it.
    #[inline(always)]
    fn parts(&mut self) -> (&mut Image, &mut Cursor, &Asid) {
        // SAFETY: its own image stays as long as the walker. The caller of `pt_insn_set_image` or `pt_blk_set_image` keeps another one as long as it is
        // set, and nobody else uses it meanwhile.
        (unsafe { &mut *self.image }, &mut self.cursor, &self.asid)
    }

    /// Nothing is known any more of what comes.
    #[inline(always)]
    fn stir(&mut self) {
        (self.calm, self.run_end, self.block) = (-1, 0, NONE);
    }

    /// What runs from here on is speculative, or not.
    fn speculate(&mut self, speculative: bool) {
        self.speculative = speculative;
        self.is_plain = !speculative && !self.ticks.are_wanted();
    }

    /// Begins where the query decoder has been put.
    pub(crate) fn begin(&mut self, to: impl FnOnce(&mut Query) -> Result<Answer, Error>) -> Status {
        self.enabled = false;
        self.speculate(false);
        self.ret_stack = RetStack::default();
        self.event = None;
        self.due = false;
        self.held = None;
        self.stir();
        self.disabled_at = None;
        self.asid = Asid::ANY;
        self.cursor.mode = 0;
        let (ip, behind) = to(&mut self.query)?;
        self.go(ip.unwrap_or(0));
        self.enabled = ip.is_some();
        behind?;
        self.settle()
    }

    /// Control is at an address.
    fn go(&mut self, ip: u64) {
        let (image, cursor, asid) = self.parts();
        image.jump(cursor, ip, asid);
    }

    /// The flags of where it is.
    #[inline]
    fn status(&self) -> c_int {
        let suppressed = if self.enabled {
            0
        } else {
            status::IP_SUPPRESSED
        };
        let rest = match (self.due, &self.event) {
            (true, _) => status::EVENT_PENDING,
            (false, Some(_)) => 0,
            (false, None) => self.query.status() & status::END,
        };
        suppressed | rest
    }

    /// Whether an event is known to come, which is asked wherever control goes.
    #[inline]
    fn event_ahead(&self) -> bool {
        self.event.is_some() || self.query.event_pending()
    }

    /// Takes the next event from the stream, if one is known to come and was not taken yet.
    #[inline(always)]
    fn fetch_event(&mut self) -> Result<(), Error> {
        if self.event.is_none() && self.query.event_pending() {
            self.take_event()?;
        }
        Ok(())
    }

    #[inline(never)]
    fn take_event(&mut self) -> Result<(), Error> {
        // (It is written where it stays.)
        let event = self.event.insert(Event::default());
        match self.query.event(event).and_then(|behind| behind) {
            Ok(()) => self.ticks.note(event),
            Err(error) => {
                self.event = None;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Goes behind an instruction that ran.
    #[inline]
    fn proceed(&mut self, step: &Step) -> Result<(), Error> {
        let taken = match step.flow {
            Flow::Next => false,
            Flow::Direct => true,
            Flow::DirectCall => {
                self.push_return(step);
                true
            }
            Flow::Conditional => {
                let taken = self.query.cond_branch()?;
                self.tick(step);
                taken
            }
            Flow::Return => match self.query.cond_branch() {
                Ok(true) => {
                    self.tick(step);
                    let to = self.ret_stack.pop().ok_or(Error::RetStackEmpty)?;
                    self.go(to);
                    return Ok(());
                }
                Ok(false) => return Err(Error::BadRetComp),
                Err(Error::BadQuery) => return self.indirect(step),
                Err(error) => return Err(error),
            },
            Flow::IndirectCall => {
                self.ret_stack.push(step.next_ip);
                return self.indirect(step);
            }
            Flow::Indirect | Flow::Far => return self.indirect(step),
        };
        let (to, known) = match taken {
            true => (step.target, step.taken),
            false => (step.next_ip, step.next),
        };
        let (image, cursor, asid) = self.parts();
        if known == NONE {
            image.follow(cursor, to, taken, asid);
        } else {
            (cursor.ip, cursor.entry) = (to, known);
        }
        Ok(())
    }

    /// What a direct call leaves behind, unless it only asks where it is.
    #[inline]
    fn push_return(&mut self, call: &Step) {
        if call.target != call.next_ip {
            self.ret_stack.push(call.next_ip);
        }
    }

    fn indirect(&mut self, step: &Step) -> Result<(), Error> {
        let (to, behind) = self.query.indirect_branch()?;
        behind?;
        self.tick(step);
        self.go(to.ok_or(Error::IpSuppressed)?);
        Ok(())
    }

    /// Sees whether the next event is due where control is; and the flags there, with what is known of the instructions that come.
    #[inline(never)]
    fn settle(&mut self) -> Status {
        self.fetch_event()?;
        if let Some(event) = &self.event {
            let (kind, place) = (event.kind, event.variant[0]);
            self.due = self.is_due(event) && !self.is_of_vm_entry();
            if self.enabled && !self.due && !self.by_blocks {
                self.find_run_before(kind, place);
            }
        } else if self.enabled {
            self.calm = self.query.status() & status::END;
            self.find_at_hand();
            return Ok(self.calm);
        }
        Ok(self.status())
    }

    /// What comes behind an instruction when no event was known to come: the next address, events there.
    #[inline]
    fn behind_step(&mut self, step: &Step) -> Status {
        self.stir();
        self.proceed(step)?;
        self.behind_branch(step.flow)
    }

    /// What comes where control has gone by an instruction of such a flow, from code that is traced.
    #[inline(always)]
    fn behind_branch(&mut self, flow: Flow) -> Status {
        if self.event_ahead() {
            return self.before_event(flow);
        }
        self.calm = self.query.status() & status::END;
        self.find_at_hand();
        Ok(self.calm)
    }

    #[inline(never)]
    fn before_event(&mut self, flow: Flow) -> Status {
        self.fetch_event()?;
        self.mend_abort(flow);
        self.settle()
    }

    /// Goes behind the known instruction where control is, no event being known to come: most steps need little of what `behind_step` does.
    #[inline(always)]
    fn leave(&mut self) -> Status {
        let (image, cursor, _) = self.parts();
        let Some(entry) = image.code.get(cursor.entry) else {
            return Err(Error::Internal);
        };
        let (flow, edges) = (entry.flow, entry.edges());
        let is_known = match flow {
            Flow::Next => self.arrive(edges[0]),
            Flow::Direct => self.arrive(edges[1]),
            Flow::Conditional if !self.ticks.are_wanted() => {
                self.read_results()?;
                match self.query.result_in_hand() {
                    Some(result) if self.arrive(edges[usize::from(result)]) => {
                        self.query.take_result_in_hand();
                        (self.calm, self.at_hand) = (0, 0);
                        true
                    }
                    _ => false,
                }
            }
            Flow::Return if !self.ticks.are_wanted() => return self.leave_by_return(),
            _ => false,
        };
        if is_known {
            return Ok(self.calm);
        }
        self.leave_slowly()
    }

    /// As `leave`, behind a return.
    #[inline(never)]
    fn leave_by_return(&mut self) -> Status {
        if self.query.stands_at_tip() {
            return self.leave_by_tip(Flow::Return);
        }
        self.read_results()?;
        if self.query.result_in_hand() == Some(true) && self.return_in_hand() {
            return Ok(self.calm);
        }
        self.leave_slowly()
    }

    /// As `leave`, where the stream stands at a TIP that tells where control goes, and no ticks are wanted.
    #[inline]
    fn leave_by_tip(&mut self, flow: Flow) -> Status {
        self.stir();
        let (to, behind) = self.query.take_tip();
        behind?;
        self.go(to.ok_or(Error::IpSuppressed)?);
        self.behind_branch(flow)
    }

    /// Reads the next TNT packet if all results have been taken.
    #[inline(always)]
    fn read_results(&mut self) -> Result<(), Error> {
        if self.query.wants_tnt()
            && let Err(error) = self.query.take_tnt()
        {
            self.stir();
            return Err(error);
        }
        Ok(())
    }

    /// Returns to where the last call came from, as a result says behind which another one is in hand; `false` if there was no call.
    #[inline]
    fn return_in_hand(&mut self) -> bool {
        let Some(to) = self.ret_stack.pop() else {
            return false;
        };
        self.query.take_result_in_hand();
        self.go(to);
        self.calm = 0;
        self.find_at_hand();
        true
    }

    /// Finds out what is at hand where control is, no event being known to come.
    #[inline]
    fn find_at_hand(&mut self) {
        match self.by_blocks {
            true => self.find_block(),
            false => self.find_run(),
        }
    }

    #[inline(never)]
    fn leave_slowly(&mut self) -> Status {
        let (image, cursor, _) = self.parts();
        let Some(entry) = image.code.get(cursor.entry) else {
            return Err(Error::Internal);
        };
        let step = entry.step();
        match step.flow {
            Flow::DirectCall if self.calm >= 0 && self.arrive(step.taken) => {
                self.push_return(&step);
                return Ok(self.calm);
            }
            Flow::Indirect | Flow::IndirectCall
                if self.query.stands_at_tip() && !self.ticks.are_wanted() =>
            {
                if step.flow == Flow::IndirectCall {
                    self.ret_stack.push(step.next_ip);
                }
                return self.leave_by_tip(step.flow);
            }
            _ => {}
        }
        self.behind_step(&step)
    }

    /// Control comes to an entry; `false` if it is none.
    #[inline(always)]
    fn arrive(&mut self, index: u32) -> bool {
        let (image, cursor, _) = self.parts();
        let Some(entry) = image.code.get(index) else {
            return false;
        };
        (cursor.ip, cursor.entry) = (entry.insn.ip, index);
        let block = entry.block;
        if self.links_blocks {
            self.block = block;
        } else if !self.by_blocks && !self.speculative {
            self.run_end = index + u32::from(self.parts().0.code.run(index));
        }
        true
    }

    /// What comes behind an instruction: events that bind to it, the next address, events there.
    fn behind(&mut self, entry: &Entry) -> Status {
        if self.event_ahead() && self.binds_event(entry)? {
            self.held = Some(*entry);
            self.bound = 0;
            return Ok(self.status());
        }
        self.behind_step(&entry.step())
    }

    /// Why there is no next instruction; none if there is one.
    #[inline]
    fn hindrance(&self) -> Result<(), Error> {
        if self.due {
            return Err(Error::BadQuery);
        }
        if !self.enabled {
            let ended = self.query.status() & status::END != 0;
            return Err(if ended { Error::End } else { Error::NoEnable });
        }
        Ok(())
    }

    /// Gives the event that is due; and the flags behind it.
    #[inline]
    pub(crate) fn event(&mut self, give: impl FnOnce(&Event)) -> Status {
        let Some(mut event) = self.event else {
            return Err(Error::BadQuery);
        };
        if !self.due {
            return Err(Error::BadQuery);
        }
        self.stir();
        self.apply(&mut event)?;
        self.due = false;
        self.event = None;
        self.bound |= 1 << event.kind;
        give(&event);
        match self.held {
            Some(_) => self.behind_bound_event(),
            None => self.settle(),
        }
    }

    /// What comes behind an event that bound to an instruction: others, or control goes on.
    #[inline(never)]
    fn behind_bound_event(&mut self) -> Status {
        if let Some(entry) = self.held {
            if self.event_ahead() && self.binds_another(&entry)? {
                return Ok(self.status());
            }
            self.held = None;
            let step = entry.step();
            self.proceed(&step)?;
            self.fetch_event()?;
            self.mend_abort(step.flow);
        }
        self.settle()
    }
}

impl Drop for Walker {
    fn drop(&mut self) {
        // SAFETY: it was handed out in `new`, and to nobody who keeps it longer than the walker.
        unsafe { take_back(self.own_image) };
    }
}
