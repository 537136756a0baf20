//! The history of one process's mappings, and one moment of it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use cofi_insn::CodeSource;
use cofi_packet::Ip;

use crate::file::CodeFile;
use crate::kallsyms::Kallsyms;
use crate::perf_map::PerfMap;
use crate::symbols::Symbol;
use crate::tree::{Region, Tree, UPPER_HALF};

/// A moment in the history of the address spaces of a trace. Only the order matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// Every how many changes the whole state is kept, so that a view need not replay all of history.
const CHECKPOINT: usize = 64;

/// What was mapped where in one process, over time.
///
/// Changes are told in the order of their versions. One told with a version below the highest so far takes effect
/// together with that one: history already told is not rewritten.
#[derive(Clone, Debug, Default)]
pub struct AddressSpace {
    log: Vec<(Version, Change)>,
    /// State before the change of index `CHECKPOINT * i`, from `i` = 0 (empty) on.
    checkpoints: Vec<Tree>,
    head: Tree,
    /// Where code took the place of other code, or went.
    replaced: Vec<(Version, CodeChange)>,
    kernel: Option<Arc<Kallsyms>>,
    generated: Option<Arc<PerfMap>>,
}

/// Where other code is in place than before, or none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CodeChange {
    /// The first address.
    pub first: Ip,
    /// The last one.
    pub last: Ip,
}

impl CodeChange {
    /// Whether all code changed: the process executes another program.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.first.0 == 0 && self.last.0 == u64::MAX
    }
}

/// A piece of a file, as it was mapped.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Mapped<'a> {
    /// From which version on.
    pub version: Version,
    /// The first address.
    pub first: Ip,
    /// The last one.
    pub last: Ip,
    /// The file.
    pub file: &'a Arc<CodeFile>,
    /// Which of its bytes is at the first address.
    pub offset: u64,
    /// It came with the whole address space: of the process that was forked, or what every process has from the beginning.
    pub is_inherited: bool,
}

#[derive(Clone, Debug)]
enum Change {
    Put(Region),
    Clear { start: u64, last: u64 },
    Replace(Tree),
}

impl Change {
    fn apply(&self, tree: &mut Tree) {
        match self {
            Change::Put(region) => tree.put(region.clone()),
            Change::Clear { start, last } => tree.clear(*start, *last),
            Change::Replace(other) => *tree = other.clone(),
        }
    }
}

impl AddressSpace {
    /// Nothing mapped, at any time.
    pub fn new() -> Self {
        Self::default()
    }

    /// At any time, what is mapped in the kernel's half of the address space goes by these names, before any that a file has.
    pub fn name_kernel(&mut self, names: &Arc<Kallsyms>) {
        self.kernel = Some(names.clone());
    }

    /// At any time, what is mapped from no ELF file and has no name of its own goes by these names.
    pub fn name_generated(&mut self, names: &Arc<PerfMap>) {
        self.generated = Some(names.clone());
    }

    /// From version `at` on, `len` bytes from address `start` show `file` from `offset` on, and nothing that stood
    /// there before. Addresses that would lie past the end of the address space or of the range of file offsets are
    /// left out. A file shorter than that leaves the rest unreadable.
    pub fn map(&mut self, start: u64, len: u64, file: &Arc<CodeFile>, offset: u64, at: Version) {
        let Some(more) = len.checked_sub(1) else {
            return;
        };
        let more = more.min(u64::MAX - start).min(u64::MAX - offset);
        self.push(
            at,
            Change::Put(Region {
                start,
                last: start + more,
                file: file.clone(),
                offset,
            }),
        );
    }

    /// From version `at` on, nothing stands in the `len` bytes from `start`.
    pub fn unmap(&mut self, start: u64, len: u64, at: Version) {
        let Some(more) = len.checked_sub(1) else {
            return;
        };
        self.push(
            at,
            Change::Clear {
                start,
                last: start.saturating_add(more),
            },
        );
    }

    /// From version `at` on, nothing is mapped at all: the process executes another program.
    pub fn clear(&mut self, at: Version) {
        self.push(at, Change::Replace(Tree::default()));
    }

    /// From version `at` on, this space is what `parent` is by its last change so far: the process was forked.
    pub fn inherit(&mut self, parent: &AddressSpace, at: Version) {
        self.push(at, Change::Replace(parent.head.clone()));
    }

    /// Whether, by the last change so far, anything is mapped in the `len` bytes from `start`.
    pub fn overlaps(&self, start: u64, len: u64) -> bool {
        len != 0 && self.head.overlaps(start, start.saturating_add(len - 1))
    }

    /// By the last change so far, the `len` bytes from `start`, if they can all be read.
    pub fn last_bytes(&self, start: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        let mut view = ImageView::new(self, Version(u64::MAX));
        (view.read(Ip(start), &mut bytes) == len).then_some(bytes)
    }

    /// Where code took the place of other code, or went, behind version `after` and up to `to`. Code where there was none is no such change.
    pub fn replaced(&self, after: Version, to: Version) -> impl Iterator<Item = CodeChange> {
        let first = self.replaced.partition_point(|(at, _)| *at <= after);
        let all = self.replaced.iter().skip(first);
        all.take_while(move |(at, _)| *at <= to)
            .map(|(_, change)| *change)
    }

    /// The version of the last change, if there was any.
    pub fn last_version(&self) -> Option<Version> {
        self.log.last().map(|(version, _)| *version)
    }

    /// Every piece of a file that was mapped at any time, as often as it was, in the order of versions.
    pub fn for_each_mapped(&self, mut visit: impl FnMut(&Mapped<'_>)) {
        for (version, change) in &self.log {
            let mut visit = |region: &Region, is_inherited| {
                visit(&Mapped {
                    version: *version,
                    first: Ip(region.start),
                    last: Ip(region.last),
                    file: &region.file,
                    offset: region.offset,
                    is_inherited,
                });
            };
            match change {
                Change::Put(region) => visit(region, false),
                Change::Clear { .. } => {}
                Change::Replace(tree) => tree.for_each(&mut |region| visit(region, true)),
            }
        }
    }

    /// Every function that was mapped at any time: its name as its list spells it, and the address of its first instruction. One
    /// that was mapped several times comes as often.
    pub fn for_each_function(&self, mut visit: impl FnMut(&str, Ip)) {
        self.for_each_region(|region| {
            region.file.for_each_function(|name, offset| {
                if let Some(ip) = region.ip_of(offset) {
                    visit(name, ip);
                }
            });
        });
        if let Some(names) = &self.generated {
            names.for_each_function(|name, start| visit(name, Ip(start)));
        }
        if let Some(names) = &self.kernel {
            names.for_each_function(|name, start| visit(name, Ip(start)));
        }
    }

    /// Every name of a function that is not shown, as [`CodeFile::for_each_other_name`] knows them, with the one that is, and the address of the
    /// first instruction.
    pub fn for_each_other_name(&self, mut visit: impl FnMut(&str, &str, Ip)) {
        self.for_each_region(|region| {
            region.file.for_each_other_name(|other, name, offset| {
                if let Some(ip) = region.ip_of(offset) {
                    visit(other, name, ip);
                }
            });
        });
    }

    /// Every stub of a procedure linkage table that was mapped at any time: its name and the address of its first instruction.
    pub fn for_each_stub(&self, mut visit: impl FnMut(&str, Ip)) {
        self.for_each_region(|region| {
            region.file.for_each_stub(|name, range| {
                if let Some(ip) = region.ip_of(range.start) {
                    visit(name, ip);
                }
            });
        });
    }

    /// Every piece of a file that was mapped at any time, as often as it was.
    fn for_each_region(&self, mut visit: impl FnMut(&Region)) {
        for (_, change) in &self.log {
            match change {
                Change::Put(region) => visit(region),
                Change::Clear { .. } => {}
                Change::Replace(tree) => tree.for_each(&mut visit),
            }
        }
    }

    fn push(&mut self, at: Version, change: Change) {
        let at = self.last_version().map_or(at, |last| last.max(at));
        if self.log.len().is_multiple_of(CHECKPOINT) {
            self.checkpoints.push(self.head.clone());
        }
        let head = &self.head;
        let (is_other, first, last) = match &change {
            Change::Put(new) => {
                let mut is_other = |old: &Region| !old.shows_the_same_as(new);
                let is_other = head.any_within(new.start, new.last, &mut is_other);
                (is_other, new.start, new.last)
            }
            Change::Clear { start, last } => (head.overlaps(*start, *last), *start, *last),
            Change::Replace(_) => (head.overlaps(0, u64::MAX), 0, u64::MAX),
        };
        if is_other {
            let (first, last) = (Ip(first), Ip(last));
            self.replaced.push((at, CodeChange { first, last }));
        }
        change.apply(&mut self.head);
        self.log.push((at, change));
    }

    /// How many changes have happened by `version`.
    fn position(&self, version: Version) -> usize {
        self.log.partition_point(|(at, _)| *at <= version)
    }
}

/// An [`AddressSpace`] at one version: the bytes a processor would have fetched.
///
/// It may be seen [together](Self::with_kernel) with another one, which all processes share: the kernel's.
#[derive(Clone, Debug)]
pub struct ImageView<'a> {
    own: Side<'a>,
    kernel: Option<Side<'a>>,
    version: Version,
    /// The region that was read last: code is mostly read where it was read before.
    hit: Option<Region>,
}

/// One address space at the view's version.
#[derive(Clone, Debug)]
struct Side<'a> {
    space: &'a AddressSpace,
    /// How many changes of the space `tree` holds.
    applied: usize,
    tree: Tree,
}

impl<'a> Side<'a> {
    fn new(space: &'a AddressSpace, version: Version) -> Self {
        let mut side = Self {
            space,
            applied: 0,
            tree: Tree::default(),
        };
        side.move_to(version);
        side
    }

    /// Whether any mapping changed on the way.
    fn move_to(&mut self, version: Version) -> bool {
        let target = self.space.position(version);
        if target == self.applied {
            return false;
        }
        let checkpoint = target / CHECKPOINT;
        if target < self.applied || checkpoint * CHECKPOINT > self.applied {
            // `target` is within the log, so that the only checkpoint that may be missing is that of its very end.
            match self.space.checkpoints.get(checkpoint) {
                Some(tree) => {
                    self.tree = tree.clone();
                    self.applied = checkpoint * CHECKPOINT;
                }
                None => {
                    self.tree = self.space.head.clone();
                    self.applied = target;
                }
            }
        }
        for (_, change) in &self.space.log[self.applied..target] {
            change.apply(&mut self.tree);
        }
        self.applied = target;
        true
    }
}

impl<'a> ImageView<'a> {
    /// `space` as it is at `version`.
    pub fn new(space: &'a AddressSpace, version: Version) -> Self {
        Self {
            own: Side::new(space, version),
            kernel: None,
            version,
            hit: None,
        }
    }

    /// Sees `kernel`, too: before the space itself in the kernel's half, behind it in the other.
    #[must_use]
    pub fn with_kernel(mut self, kernel: &'a AddressSpace) -> Self {
        self.kernel = Some(Side::new(kernel, self.version));
        self.hit = None;
        self
    }

    /// The version looked at.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The address space looked at.
    pub fn space(&self) -> &'a AddressSpace {
        self.own.space
    }

    /// All address spaces looked at: this one, and the kernel's.
    pub fn spaces(&self) -> impl Iterator<Item = &'a AddressSpace> {
        let kernel = self.kernel.as_ref().map(|kernel| kernel.space);
        [self.own.space].into_iter().chain(kernel)
    }

    /// Looks at another version, later or earlier. Returns whether any mapping changed on the way, which is when
    /// code decoded through this view must not be used again.
    pub fn set_version(&mut self, version: Version) -> bool {
        self.version = version;
        let mut changed = self.own.move_to(version);
        if let Some(kernel) = &mut self.kernel {
            changed |= kernel.move_to(version);
        }
        if changed {
            self.hit = None;
        }
        changed
    }

    /// Four numbers that are the same for two views of the same spaces if, and only if, all mappings are.
    #[must_use]
    pub fn state(&self) -> [u64; 4] {
        let of = |side: &Side<'_>| {
            let space: *const AddressSpace = side.space;
            // Spaces are borrowed for as long as their views are: two of them never share an address.
            [space.addr() as u64, side.applied as u64]
        };
        let [own, at] = of(&self.own);
        let [kernel, kernel_at] = self.kernel.as_ref().map_or([0; 2], of);
        [own, at, kernel, kernel_at]
    }

    /// What holds `address`, as far as nothing else covers it.
    fn find(&self, address: u64) -> Option<Region> {
        let own = &self.own.tree;
        let Some(kernel) = self.kernel.as_ref().map(|kernel| &kernel.tree) else {
            return own.find(address).cloned();
        };
        let (first, second) = if address >= UPPER_HALF {
            (kernel, own)
        } else {
            (own, kernel)
        };
        if let Some(region) = first.find(address) {
            // It may reach into the half where the other tree comes first.
            return region.within_half(address);
        }
        let region = second.find(address)?;
        if first.overlaps(region.start, region.last) {
            region.only(address)
        } else {
            region.within_half(address)
        }
    }

    /// What is mapped at `ip`, whether it can be read or not.
    pub fn place(&self, ip: Ip) -> Option<Place> {
        let region = self.find(ip.0)?;
        Some(Place {
            offset: region.offset_of(ip.0)?,
            kernel: self.kernel_function(ip),
            generated: self.generated_function(ip, &region.file),
            file: region.file,
        })
    }

    fn generated_function(&self, ip: Ip, file: &CodeFile) -> Option<(Arc<PerfMap>, u64)> {
        let names = self.own.space.generated.as_ref()?;
        let is_unknown = file.segments().is_empty();
        is_unknown.then(|| (names.clone(), ip.0))
    }

    fn kernel_function(&self, ip: Ip) -> Option<KernelFunction> {
        let names = self.own.space.kernel.as_ref()?;
        let index = names.find(ip.0)?;
        Some(KernelFunction {
            names: names.clone(),
            index,
            address: ip.0,
        })
    }

    /// Every mapping, by address, the kernel's behind the others: first address, last address, file, file offset of the first byte.
    pub fn for_each_mapping(&self, mut visit: impl FnMut(Ip, Ip, &Arc<CodeFile>, u64)) {
        let mut visit = |region: &Region| {
            let (first, last) = (Ip(region.start), Ip(region.last));
            visit(first, last, &region.file, region.offset);
        };
        self.own.tree.for_each(&mut visit);
        if let Some(kernel) = &self.kernel {
            kernel.tree.for_each(&mut visit);
        }
    }
}

impl CodeSource for ImageView<'_> {
    fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buf.len() {
            let Some(address) = ip.0.checked_add(done as u64) else {
                break;
            };
            if !self.hit.as_ref().is_some_and(|hit| hit.contains(address)) {
                match self.find(address) {
                    Some(region) => self.hit = Some(region),
                    None => break,
                }
            }
            let Some(region) = &self.hit else { break };
            let Some(offset) = region.offset_of(address) else {
                break;
            };
            // At least one byte, since the region holds the address; at most what is left to fill.
            let room = buf.len() - done;
            let wanted = usize::try_from(region.last - address)
                .map_or(room, |more| room.min(more.saturating_add(1)));
            let count = region.file.read_at(offset, &mut buf[done..done + wanted]);
            done += count;
            if count < wanted {
                break;
            }
        }
        done
    }
}

/// An address in a function of the kernel's.
#[derive(Clone, Debug)]
struct KernelFunction {
    names: Arc<Kallsyms>,
    index: usize,
    address: u64,
}

/// Where in which file an address lies. Prints as `function+0x12`, or as `path+0x1234` (the file's own address, or
/// the offset in a file that has none) where no function is known.
#[derive(Clone, Debug)]
pub struct Place {
    /// The file mapped there.
    pub file: Arc<CodeFile>,
    /// The byte of the file.
    pub offset: u64,
    /// What the kernel's own list says of the address.
    kernel: Option<KernelFunction>,
    /// The process's own list of what it generated, and the address.
    generated: Option<(Arc<PerfMap>, u64)>,
}

impl Place {
    /// The place so many bytes further on, of the same function as this one if it is generated, or the kernel's.
    #[must_use]
    pub fn forward(&self, bytes: u64) -> Self {
        let mut place = self.clone();
        place.offset = place.offset.wrapping_add(bytes);
        if let Some(kernel) = &mut place.kernel {
            kernel.address = kernel.address.wrapping_add(bytes);
        }
        if let Some((_, address)) = &mut place.generated {
            *address = address.wrapping_add(bytes);
        }
        place
    }

    /// The function there. One of the kernel's has its start in memory, not in the file.
    pub fn symbol(&self) -> Option<Symbol<'_>> {
        match self.in_kernel() {
            Some((symbol, _)) => Some(symbol),
            None => self.file.symbol_at(self.offset).or_else(|| {
                let (names, address) = self.generated.as_ref()?;
                names.at(*address)
            }),
        }
    }

    /// The function there, or the stub of the procedure linkage table (`puts@plt`), which is none and has no symbol: for who shows names.
    pub fn symbol_or_stub(&self) -> Option<Symbol<'_>> {
        self.symbol().or_else(|| self.file.stub_at(self.offset))
    }

    /// What the code belongs to: `[kernel]` or `[MODULE]` where the kernel's own list names the function, else the file.
    pub fn owner(&self) -> &Path {
        self.in_kernel()
            .map_or_else(|| self.file.path(), |(_, owner)| owner)
    }

    fn in_kernel(&self) -> Option<(Symbol<'_>, &Path)> {
        let kernel = self.kernel.as_ref()?;
        kernel.names.symbol(kernel.index, kernel.address)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(symbol) = self.symbol_or_stub() {
            f.write_str(&symbol.demangled())?;
            if symbol.offset != 0 {
                write!(f, "+{:#x}", symbol.offset)?;
            }
            return Ok(());
        }
        let address = self
            .file
            .address_of_offset(self.offset)
            .unwrap_or(self.offset);
        write!(f, "{}+{address:#x}", self.file.path().display())
    }
}
