//! The flow of a thread, or of bare packets whose code the caller reads.

use crate::recording::Opened;
use crate::status::{
    Growing, Place, Status, because, bytes, given, given_mut, guarded, hand_out, invalid, take_back,
};
use cofi_flow::{Block, Event, Field, FlowConfig, FlowDecoder, Item};
use cofi_insn::CodeSource;
use cofi_packet::{Ip, StreamOffset};
use cofi_session::OwnedFlow;
use core::mem::offset_of;
use self_cell::self_cell;
use std::ffi::{CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Reads code: `cofi_read`.
type Read = unsafe extern "C" fn(*mut c_void, u64, *mut u8, usize) -> usize;

/// Code that the caller reads.
struct Callers {
    read: Read,
    context: *mut c_void,
}

impl CodeSource for Callers {
    fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
        // SAFETY: the caller's function, which stores so many bytes at most.
        let read = unsafe { (self.read)(self.context, ip.0, buf.as_mut_ptr(), buf.len()) };
        read.min(buf.len())
    }
}

type Decoder<'a> = FlowDecoder<'a, Callers>;

self_cell! {
    /// Bare packets, and their decoder.
    struct Bare {
        owner: Vec<u8>,
        #[not_covariant]
        dependent: Decoder,
    }
}

/// Where the flow comes from.
enum Source {
    Thread(OwnedFlow),
    Bare(Bare),
}

impl Source {
    fn blocks(&mut self, visit: impl FnMut(&Block<'_>)) -> Option<Item> {
        match self {
            Self::Thread(flow) => flow.with(|flow| flow.blocks(visit)),
            Self::Bare(bare) => bare.with_dependent_mut(|_, decoder| decoder.blocks(visit)),
        }
    }

    fn offset(&mut self) -> StreamOffset {
        match self {
            Self::Thread(flow) => flow.with(|flow| flow.offset()),
            Self::Bare(bare) => bare.with_dependent(|_, decoder| decoder.offset()),
        }
    }
}

/// `cofi_flow`.
pub struct Flow {
    source: Source,
    instructions: u64,
    /// It was left where it stood.
    is_over: bool,
    fields: Vec<FieldValue>,
    texts: Vec<CString>,
}

impl std::fmt::Debug for Flow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flow").finish_non_exhaustive()
    }
}

impl Flow {
    fn new(source: Source) -> Self {
        Self {
            source,
            instructions: 0,
            is_over: false,
            fields: Vec::new(),
            texts: Vec::new(),
        }
    }
}

/// `cofi_flow_of_thread`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_flow_of_thread(
    recording: *const Opened,
    index: usize,
    out: *mut *mut Flow,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (opened, out) = unsafe { (given(recording, "recording")?, given_mut(out, "out")?) };
        hand_out(Flow::new(Source::Thread(opened.flow(index)?)), out);
        Ok(())
    })
}

/// `cofi_flow_of_bytes`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_flow_of_bytes(
    data: *const u8,
    len: usize,
    read: Option<Read>,
    context: *mut c_void,
    out: *mut *mut Flow,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (data, out) = unsafe { (bytes(data, len)?, given_mut(out, "out")?) };
        let read = read.ok_or_else(|| invalid("read is null"))?;
        let bare = Bare::new(data.to_vec(), |data| {
            FlowDecoder::new(data, Callers { read, context }, FlowConfig::default())
        });
        hand_out(Flow::new(Source::Bare(bare)), out);
        Ok(())
    })
}

/// `cofi_flow_free`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_flow_free(flow: *mut Flow) {
    // SAFETY: as the caller says.
    unsafe { take_back(flow) }
}

/// `cofi_block`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Piece {
    ip: u64,
    end: u64,
    offset: u64,
    instructions: u32,
    class: u8,
    mode: u8,
    reserved: u16,
}

/// `cofi_insn`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Insn {
    ip: u64,
    length: u8,
    class: u8,
    mode: u8,
    reserved: [u8; 5],
}

/// `cofi_field`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FieldValue {
    name: *const c_char,
    text: *const c_char,
    value: u64,
    is_known: u32,
    reserved: u32,
}

/// `cofi_item`.
#[derive(Debug)]
#[repr(C)]
pub struct Happening {
    size: u32,
    kind: u32,
    name: *const c_char,
    text: *const c_char,
    offset: u64,
    instructions: u64,
    fields: *const FieldValue,
    field_count: usize,
}

/// The caller's function wants no more.
struct Stop;

/// So many are handed over at once.
const AT_ONCE: usize = 4096;

/// What is handed over in pieces.
struct Batch<T> {
    waiting: Vec<T>,
    visit: unsafe extern "C" fn(*mut c_void, *const T, usize) -> i32,
    context: *mut c_void,
}

impl<T> Batch<T> {
    fn new(
        visit: Option<unsafe extern "C" fn(*mut c_void, *const T, usize) -> i32>,
        context: *mut c_void,
    ) -> Result<Self, Status> {
        Ok(Self {
            waiting: Vec::with_capacity(AT_ONCE),
            visit: visit.ok_or_else(|| invalid("visit is null"))?,
            context,
        })
    }

    #[inline]
    fn push(&mut self, one: T) {
        self.waiting.push(one);
        if self.waiting.len() >= AT_ONCE {
            self.hand_over();
        }
    }

    /// Leaves the decoder where it stands if no more are wanted: it cannot be told otherwise.
    fn hand_over(&mut self) {
        if !self.waiting.is_empty() {
            let (all, count) = (self.waiting.as_ptr(), self.waiting.len());
            // SAFETY: the caller's function, which reads so many.
            let said = unsafe { (self.visit)(self.context, all, count) };
            self.waiting.clear();
            if said != 0 {
                resume_unwind(Box::new(Stop));
            }
        }
    }
}

impl Flow {
    /// Runs to the next event or gap.
    fn run<T>(
        &mut self,
        batch: &mut Batch<T>,
        add: impl Fn(&mut Batch<T>, &Block<'_>),
        out: &Place<Happening>,
    ) -> Result<(), Status> {
        if self.is_over {
            return Err(Status::End);
        }
        let (source, ran) = (&mut self.source, &mut self.instructions);
        let decoded = catch_unwind(AssertUnwindSafe(|| {
            let item = source.blocks(|block| {
                *ran += block.len() as u64;
                add(batch, block);
            });
            batch.hand_over();
            item
        }));
        let item = match decoded {
            Ok(Some(item)) => item,
            Ok(None) => {
                self.is_over = true;
                return Err(Status::End);
            }
            Err(payload) => {
                self.is_over = true;
                return Err(match payload.is::<Stop>() {
                    true => because(Status::Stopped, "the caller's function asked for it"),
                    false => because(Status::Failed, "an error of the library itself"),
                });
            }
        };
        let told = self.tell(&item);
        out.store(told);
        Ok(())
    }

    fn text(&mut self, text: impl Into<Vec<u8>>) -> *const c_char {
        let text = CString::new(text).unwrap_or_default();
        // (A string stays where it is, wherever the list of them goes.)
        let at = text.as_ptr();
        self.texts.push(text);
        at
    }

    fn tell(&mut self, item: &Item) -> Happening {
        self.fields.clear();
        self.texts.clear();
        let offset = self.source.offset().0;
        let mut out = Happening {
            size: 0,
            kind: 0,
            name: std::ptr::null(),
            text: std::ptr::null(),
            offset,
            instructions: self.instructions,
            fields: std::ptr::null(),
            field_count: 0,
        };
        match item {
            Item::Event(event) => {
                out.kind = if matches!(event, Event::Overflow { .. }) {
                    2
                } else {
                    1
                };
                out.name = self.text(event.name());
                let mut fields = Vec::new();
                event.fields(&mut |name, field| fields.push((name, field)));
                for (name, field) in fields {
                    let (value, text) = match field {
                        Field::Hex(value) | Field::Number(value) => (value, None),
                        Field::Flag(flag) => (Some(flag.into()), None),
                        Field::Text(text) => (None, Some(text)),
                        // (The flow has no events with outcomes of branches.)
                        _ => (None, None),
                    };
                    let field = FieldValue {
                        name: self.text(name),
                        is_known: (value.is_some() || text.is_some()).into(),
                        text: text.map_or(std::ptr::null(), |text| self.text(text)),
                        value: value.unwrap_or(0),
                        reserved: 0,
                    };
                    self.fields.push(field);
                }
            }
            Item::Error(error) => {
                out.kind = 2;
                out.offset = error.offset.0;
                out.name = self.text(error.kind.name());
                out.text = self.text(error.kind.to_string());
                if let Some(ip) = error.ip {
                    let field = FieldValue {
                        name: self.text("ip"),
                        text: std::ptr::null(),
                        value: ip.0,
                        is_known: 1,
                        reserved: 0,
                    };
                    self.fields.push(field);
                }
            }
            // (Blocks are handed over as they are.)
            Item::Insn(_) => out.kind = 0,
        }
        (out.fields, out.field_count) = (self.fields.as_ptr(), self.fields.len());
        out
    }
}

/// `cofi_flow_blocks`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_flow_blocks(
    flow: *mut Flow,
    visit: Option<unsafe extern "C" fn(*mut c_void, *const Piece, usize) -> i32>,
    context: *mut c_void,
    out: *mut Happening,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (flow, out) = unsafe { (given_mut(flow, "flow")?, Place::of(out, "item")?) };
        let mut batch = Batch::new(visit, context)?;
        let add = |batch: &mut Batch<Piece>, block: &Block<'_>| {
            let Some(last) = block.last().or_else(|| block.iter().last()) else {
                return;
            };
            batch.push(Piece {
                ip: block.ip().0,
                end: last.ip.0,
                offset: block.offset().0,
                instructions: block.len() as u32,
                class: last.class.index() as u8,
                mode: block.mode().bits() as u8,
                reserved: 0,
            });
        };
        flow.run(&mut batch, add, &out)
    })
}

/// `cofi_flow_instructions`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_flow_instructions(
    flow: *mut Flow,
    visit: Option<unsafe extern "C" fn(*mut c_void, *const Insn, usize) -> i32>,
    context: *mut c_void,
    out: *mut Happening,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (flow, out) = unsafe { (given_mut(flow, "flow")?, Place::of(out, "item")?) };
        let mut batch = Batch::new(visit, context)?;
        let add = |batch: &mut Batch<Insn>, block: &Block<'_>| {
            block.for_each(|insn| {
                batch.push(Insn {
                    ip: insn.ip.0,
                    length: insn.len,
                    class: insn.class.index() as u8,
                    mode: insn.mode.bits() as u8,
                    reserved: [0; 5],
                });
            });
        };
        flow.run(&mut batch, add, &out)
    })
}

/// `cofi_class_name`.
#[unsafe(no_mangle)]
pub extern "C" fn cofi_class_name(class: u8) -> *const c_char {
    // Terminated: the names themselves are not.
    static NAMES: std::sync::OnceLock<Vec<CString>> = std::sync::OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let all = cofi_insn::Class::ALL.iter();
        all.map(|class| CString::new(class.name()).unwrap_or_default())
            .collect()
    });
    let name = names.get(usize::from(class));
    name.map_or(std::ptr::null(), |name| name.as_ptr())
}

// SAFETY: numbers and pointers.
unsafe impl Growing for Happening {
    const FIRST: usize = 56;
}

/// Sizes and members' places, for who compares with cofi.h.
#[must_use]
pub fn layout() -> Vec<usize> {
    vec![
        size_of::<Piece>(),
        offset_of!(Piece, ip),
        offset_of!(Piece, end),
        offset_of!(Piece, offset),
        offset_of!(Piece, instructions),
        offset_of!(Piece, class),
        offset_of!(Piece, mode),
        size_of::<Insn>(),
        offset_of!(Insn, ip),
        offset_of!(Insn, length),
        offset_of!(Insn, class),
        offset_of!(Insn, mode),
        size_of::<FieldValue>(),
        offset_of!(FieldValue, name),
        offset_of!(FieldValue, text),
        offset_of!(FieldValue, value),
        offset_of!(FieldValue, is_known),
        size_of::<Happening>(),
        offset_of!(Happening, kind),
        offset_of!(Happening, name),
        offset_of!(Happening, text),
        offset_of!(Happening, offset),
        offset_of!(Happening, instructions),
        offset_of!(Happening, fields),
        offset_of!(Happening, field_count),
    ]
}
