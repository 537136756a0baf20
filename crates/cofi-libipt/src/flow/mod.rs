//! What the instruction decoder and the block decoder share: where control is, and which event comes next.

mod apply;
pub mod capi;
mod errata;
mod ret_stack;
mod tick;
mod when;

use std::ffi::c_int;

use crate::block::CBlock;
use crate::code::{CInsn, Cursor, Entry, Flow, NONE, Step};
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
    /// The caller's image, or null: then its own.
    image: *mut Image,
    own_image: Box<Image>,
    cursor: Cursor,
    /// Whether tracing is on.
    enabled: bool,
    speculative: bool,
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
    /// Where tracing was disabled last.
    disabled_at: Option<u64>,
    end_on_call: bool,
    end_on_jump: bool,
    ticks: Ticks,
    /// Blocks are asked for, not instructions.
    by_blocks: bool,
}

/// What a question gave: the flags, or an error.
pub(crate) type Status = Result<c_int, Error>;

impl Walker {
    pub(crate) fn new(config: Config, by_blocks: bool) -> Self {
        Self {
            query: Query::new(config),
            image: std::ptr::null_mut(),
            own_image: Box::new(Image::new(None)),
            cursor: Cursor {
                ip: 0,
                mode: 0,
                entry: NONE,
                epoch: 0,
            },
            enabled: false,
            speculative: false,
            asid: Asid::ANY,
            ret_stack: RetStack::default(),
            event: None,
            due: false,
            held: None,
            bound: 0,
            calm: -1,
            disabled_at: None,
            end_on_call: config.flags[0] & 1 != 0,
            end_on_jump: config.flags[0] & 4 != 0,
            ticks: Ticks::new(&config, by_blocks),
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
        self.image = image;
        self.cursor.entry = NONE;
        // (Behind an instruction to which events bind, control goes on in the new image, where the numbers of entries mean something else.)
        if let Some(entry) = &mut self.held {
            entry.forget_edges();
        }
    }

    pub(crate) fn image_pointer(&mut self) -> *mut Image {
        match self.image.is_null() {
            true => &raw mut *self.own_image,
            false => self.image,
        }
    }

    /// The image, with what must be changed beside it.
    #[inline]
    fn parts(&mut self) -> (&mut Image, &mut Cursor, &Asid) {
        let image = match self.image.is_null() {
            true => &mut *self.own_image,
            // SAFETY: the caller of `pt_insn_set_image` or `pt_blk_set_image` keeps the image as long as it is set, and nobody else uses it meanwhile.
            false => unsafe { &mut *self.image },
        };
        (image, &mut self.cursor, &self.asid)
    }

    /// Begins where the query decoder has been put.
    pub(crate) fn begin(&mut self, to: impl FnOnce(&mut Query) -> Result<Answer, Error>) -> Status {
        self.enabled = false;
        self.speculative = false;
        self.ret_stack = RetStack::default();
        self.event = None;
        self.due = false;
        self.held = None;
        self.calm = -1;
        self.disabled_at = None;
        self.asid = Asid::ANY;
        self.cursor.mode = 0;
        let (ip, behind) = to(&mut self.query)?;
        self.go(ip.unwrap_or(0));
        self.enabled = ip.is_some();
        behind?;
        self.look_for_event()?;
        Ok(self.status())
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
    #[inline]
    fn fetch_event(&mut self) -> Result<(), Error> {
        if self.event.is_none() && self.query.event_pending() {
            let (event, behind) = self.query.event()?;
            behind?;
            self.ticks.note(&event);
            self.event = Some(event);
        }
        Ok(())
    }

    /// Sees whether the next event is due where control is.
    fn look_for_event(&mut self) -> Result<(), Error> {
        self.fetch_event()?;
        if let Some(event) = &self.event {
            self.due = self.is_due(event) && !self.is_of_vm_entry();
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
                if step.target != step.next_ip {
                    self.ret_stack.push(step.next_ip);
                }
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

    fn indirect(&mut self, step: &Step) -> Result<(), Error> {
        let (to, behind) = self.query.indirect_branch()?;
        behind?;
        self.tick(step);
        self.go(to.ok_or(Error::IpSuppressed)?);
        Ok(())
    }

    /// What comes behind an instruction when no event was known to come: the next address, events there.
    #[inline]
    fn behind_step(&mut self, step: &Step) -> Status {
        self.calm = -1;
        self.proceed(step)?;
        if self.event_ahead() {
            self.fetch_event()?;
            self.mend_abort(step);
            self.look_for_event()?;
            return Ok(self.status());
        }
        // (Nothing is due, and tracing is on.)
        let status = self.query.status() & status::END;
        self.calm = status;
        Ok(status)
    }

    /// Goes along an edge that needs no packet and is known; `false` if there is none.
    #[inline(always)]
    fn glide(&mut self, step: &Step) -> bool {
        let (to, known) = match step.flow {
            Flow::Next => (step.next_ip, step.next),
            Flow::Direct | Flow::DirectCall => (step.target, step.taken),
            _ => return false,
        };
        if known == NONE {
            return false;
        }
        if step.flow == Flow::DirectCall && step.target != step.next_ip {
            self.ret_stack.push(step.next_ip);
        }
        (self.cursor.ip, self.cursor.entry) = (to, known);
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

    /// Goes along one of these edges as the next TNT result says, if another one is in hand behind it: then no event comes, and no time has passed.
    #[inline(always)]
    fn turn(&mut self, [next, taken]: [u32; 2]) -> bool {
        let Some(result) = self.query.result_in_hand() else {
            return false;
        };
        let follower = if result { taken } else { next };
        let (image, cursor, _) = self.parts();
        let Some(entry) = image.code.get(follower) else {
            return false;
        };
        (cursor.ip, cursor.entry) = (entry.insn.ip, follower);
        self.query.take_result_in_hand();
        self.calm = 0;
        true
    }

    /// What comes behind the known instruction where control is, apart, so that what most instructions need stays short.
    #[inline(never)]
    fn behind_known(&mut self) -> Status {
        let (image, cursor, _) = self.parts();
        let entry = image.known(cursor).ok_or(Error::Internal)?;
        let (flow, edges) = (entry.flow, entry.edges());
        if flow == Flow::Conditional && !self.ticks.are_wanted() && self.turn(edges) {
            return Ok(self.calm);
        }
        let (image, cursor, _) = self.parts();
        let step = image.known(cursor).ok_or(Error::Internal)?.step();
        match self.glide(&step) {
            true => Ok(self.calm),
            false => self.behind_step(&step),
        }
    }

    /// The next instruction, if there is one; and the flags behind it.
    #[inline(always)]
    pub(crate) fn next_insn(&mut self, out: &mut CInsn) -> Status {
        if self.calm >= 0 {
            let speculative = u32::from(self.speculative);
            let (image, cursor, _) = self.parts();
            if let Some(entry) = image.known(cursor) {
                *out = entry.insn;
                out.flags |= speculative;
                let follower = entry.follower();
                let Some(next) = image.code.get(follower) else {
                    return self.behind_known();
                };
                (cursor.ip, cursor.entry) = (next.insn.ip, follower);
                return Ok(self.calm);
            }
        }
        self.next_insn_slowly(out)
    }

    #[cold]
    #[inline(never)]
    fn next_insn_slowly(&mut self, out: &mut CInsn) -> Status {
        // (Its class tells the caller that there is none.)
        *out = CInsn::default();
        self.calm = -1;
        self.hindrance()?;
        let (image, cursor, asid) = self.parts();
        let entry = image.look_up(cursor, asid)?;
        *out = entry.insn;
        out.flags |= u32::from(self.speculative);
        self.behind(&entry)
    }

    /// The event that is due, and the flags behind it.
    pub(crate) fn event(&mut self) -> Result<(Event, Status), Error> {
        let Some(event) = self.event.filter(|_| self.due) else {
            return Err(Error::BadQuery);
        };
        self.calm = -1;
        let event = self.apply(event)?;
        self.due = false;
        self.event = None;
        self.bound |= 1 << event.kind;
        let status = self.behind_event();
        Ok((event, status))
    }

    fn behind_event(&mut self) -> Status {
        if let Some(entry) = self.held {
            if self.event_ahead() && self.binds_another(&entry)? {
                return Ok(self.status());
            }
            self.held = None;
            let step = entry.step();
            self.proceed(&step)?;
            self.fetch_event()?;
            self.mend_abort(&step);
        }
        self.look_for_event()?;
        Ok(self.status())
    }

    /// The next block, whose number of instructions is 0 if there is none; and the flags behind it.
    #[inline(always)]
    pub(crate) fn next_block(&mut self, out: &mut CBlock) -> Status {
        let is_free = self.calm >= 0 || self.hindrance().is_ok() && !self.event_ahead();
        if is_free && !self.end_on_call && !self.end_on_jump {
            let speculative = u8::from(self.speculative);
            let (image, cursor, asid) = self.parts();
            if let Some(entry) = image.known(cursor).filter(|entry| entry.block != NONE) {
                let index = entry.block as usize;
                return self.whole_block(index, speculative, out);
            }
            let index = match image.block(cursor, asid) {
                Ok(index) => index,
                Err(error) => {
                    *out = CBlock::default();
                    return Err(error);
                }
            };
            if let Some(index) = index {
                return self.whole_block(index, speculative, out);
            }
        }
        self.next_block_slowly(out)
    }

    #[inline]
    fn whole_block(&mut self, index: usize, speculative: u8, out: &mut CBlock) -> Status {
        // (Not `parts`: return addresses go to another field.)
        let image = match self.image.is_null() {
            true => &*self.own_image,
            // SAFETY: as in `parts`.
            false => unsafe { &*self.image },
        };
        let block = image.code.blocks.get(index).ok_or(Error::Internal)?;
        *out = block.block;
        out.flags |= speculative;
        for ip in &block.returns {
            self.ret_stack.push(*ip);
        }
        let last = image.code.get(block.last).ok_or(Error::Internal)?;
        let edges = last.edges();
        (self.cursor.entry, self.cursor.ip) = (block.last, last.insn.ip);
        if last.flow == Flow::Conditional && !self.ticks.are_wanted() && self.turn(edges) {
            return Ok(0);
        }
        let image = match self.image.is_null() {
            true => &*self.own_image,
            // SAFETY: as in `parts`.
            false => unsafe { &*self.image },
        };
        let step = image
            .code
            .get(self.cursor.entry)
            .ok_or(Error::Internal)?
            .step();
        self.behind_step(&step)
    }

    #[cold]
    #[inline(never)]
    fn next_block_slowly(&mut self, out: &mut CBlock) -> Status {
        self.calm = -1;
        *out = CBlock {
            flags: u8::from(self.speculative),
            ..CBlock::default()
        };
        if let Err(error) = self.hindrance() {
            // (libipt looks for code at once if an event waits for control to come to its place.)
            let waits = error == Error::NoEnable && self.event_ahead();
            return Err(if waits { Error::NoMap } else { error });
        }
        self.walk_block(out)
    }

    /// A block instruction by instruction.
    fn walk_block(&mut self, block: &mut CBlock) -> Status {
        loop {
            if self
                .event
                .as_ref()
                .is_some_and(|event| self.left_ranges(event))
            {
                self.due = true;
                return Ok(self.status());
            }
            let (image, cursor, asid) = self.parts();
            let entry = image.look_up(cursor, asid)?;
            if !block.append(&entry.insn) {
                return Ok(self.status());
            }
            let status = self.behind(&entry)?;
            let ends = match entry.flow {
                Flow::Next => block.is_truncated(),
                Flow::Direct => self.end_on_jump,
                Flow::DirectCall => self.end_on_call,
                _ => true,
            };
            if ends || self.due || !self.enabled {
                return Ok(status);
            }
        }
    }
}
