//! The functions of calls, by number.

use std::borrow::Cow;
use std::path::Path;

use cofi_image::{ImageView, Place};
use cofi_packet::Ip;
use cofi_session::compact;
use rustc_hash::FxHashMap;

use super::{Call, FunctionId};
use crate::functions::{FunctionKey, Functions};
use crate::summary::FunctionCount;

/// The functions seen so far.
#[derive(Debug, Default)]
pub struct CallNames {
    functions: Functions,
    /// What is known of each beside its name.
    traits: Vec<Traits>,
    /// Cold parts of functions, and the function of each.
    cold: FxHashMap<FunctionId, Option<FunctionId>>,
    /// Of code that no symbol names: how far in memory it lies from where its file says.
    moved: FxHashMap<FunctionId, u64>,
}

/// [`CallNames`], as they are kept.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct SavedNames {
    functions: Vec<(FunctionKey, FunctionCount)>,
    traits: Vec<Traits>,
    cold: Vec<(FunctionId, Option<FunctionId>)>,
    moved: Vec<(FunctionId, u64)>,
}

/// Functions, each with what is known of it: see [`CallNames::adopt`].
#[derive(Debug, Default)]
pub(super) struct NewNames(Vec<((FunctionKey, FunctionCount), Traits, Option<u64>)>);

impl SavedNames {
    /// Whether all numbers in it are of functions, as many as there are traits.
    pub(super) fn is_sound(&self) -> bool {
        let count = self.functions.len();
        let known = |of: &FunctionId| of.index() < count;
        self.traits.len() == count
            && self
                .cold
                .iter()
                .all(|(cold, whole)| known(cold) && whole.iter().all(known))
            && self.moved.iter().all(|(of, _)| known(of))
    }

    /// How many functions there are.
    pub(super) fn len(&self) -> usize {
        self.functions.len()
    }
}

/// What the reconstruction has to know of a function by its name.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Traits {
    pub(crate) saves_jump: bool,
    starts_program: bool,
    pub(crate) throws: bool,
    pub(crate) go: Option<GoRole>,
    pub(crate) thunk: Option<Thunk>,
}

impl Traits {
    /// Nothing is to be known of it.
    #[inline]
    pub(crate) const fn is_plain(&self) -> bool {
        !self.saves_jump && !self.throws && self.go.is_none() && self.thunk.is_none()
    }
}

/// What stands in the kernel for an instruction of which the processor must not speculate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Thunk {
    /// For an indirect call or jump.
    Indirect,
    /// For a return.
    Return,
}

/// What a function of Go's runtime does to stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum GoRole {
    /// It leaves a goroutine's stack for that of the scheduler; a jump of the scheduler comes back to its caller.
    Parks,
    /// Its indirect jump goes on with a goroutine.
    Resumes,
    /// What runs on the scheduler's stack when a goroutine is over.
    Ends,
    /// The same when a panic was recovered from.
    Recovers,
    /// What the first function of a goroutine returns to.
    Exit,
}

/// Where in which function an instruction stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Location {
    pub(crate) function: FunctionId,
    /// It is the function's first instruction.
    pub(crate) is_first: bool,
    /// A symbol names the function.
    pub(crate) is_named: bool,
    /// The function's first instruction, if that is known.
    pub(crate) start: Option<Ip>,
}

impl Location {
    /// Whether it is in a function of which nothing is to be known but where it is.
    pub(super) fn is_plain(&self, names: &CallNames) -> bool {
        names.traits(self.function).is_plain()
    }
}

impl CallNames {
    /// How many functions there are: their numbers are those below.
    #[must_use]
    pub fn len(&self) -> usize {
        self.traits.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.traits.is_empty()
    }

    /// The function of a number below [`len`](Self::len).
    #[must_use]
    pub fn id(&self, index: usize) -> Option<FunctionId> {
        (index < self.len()).then_some(FunctionId(index as u32))
    }

    /// All that is known.
    pub(super) fn saved(&self) -> SavedNames {
        let cold = self.cold.iter().map(|(cold, whole)| (*cold, *whole));
        let moved = self.moved.iter().map(|(of, by)| (*of, *by));
        let mut saved = SavedNames {
            functions: self.functions.list().to_vec(),
            traits: self.traits.clone(),
            cold: cold.collect(),
            moved: moved.collect(),
        };
        // The same names are the same bytes.
        compact::sort_by(&mut saved.cold, Ord::cmp);
        compact::sort_by(&mut saved.moved, Ord::cmp);
        saved
    }

    /// What [`saved`](Self::saved) gave.
    pub(super) fn of_saved(saved: SavedNames) -> Self {
        Self {
            functions: Functions::of_list(saved.functions),
            traits: saved.traits,
            cold: saved.cold.into_iter().collect(),
            moved: saved.moved.into_iter().collect(),
        }
    }

    /// The functions from this number on, for another list of functions to [adopt](Self::adopt).
    pub(super) fn since(&self, first: usize) -> NewNames {
        let new = self.functions.list().iter().zip(&self.traits).zip(0..);
        let new = new.skip(first).map(|((function, traits), number)| {
            let moved = self.moved.get(&FunctionId(number)).copied();
            (function.clone(), *traits, moved)
        });
        NewNames(new.collect())
    }

    /// The functions of another list, which have the numbers that are returned here.
    pub(super) fn adopt(&mut self, new: NewNames) -> impl Iterator<Item = FunctionId> {
        new.0.into_iter().map(|((key, function), traits, moved)| {
            let number = self.functions.number(key, || function.name);
            if number == self.traits.len() {
                self.traits.push(traits);
            }
            let number = FunctionId(number as u32);
            if let Some(moved) = moved {
                self.moved.insert(number, moved);
            }
            number
        })
    }

    /// The function's name, demangled; none if nothing names it.
    #[must_use]
    pub fn name(&self, function: FunctionId) -> Option<&str> {
        let count = self.functions.get(function.0 as usize)?;
        count.is_named.then_some(count.name.as_str())
    }

    /// The file that holds it, if that is known.
    #[must_use]
    pub fn file(&self, function: FunctionId) -> Option<&Path> {
        self.functions.get(function.0 as usize)?.file.as_deref()
    }

    /// Its first address in its file's own terms: see [`FunctionCount::address`](crate::FunctionCount::address).
    #[must_use]
    pub fn address(&self, function: FunctionId) -> Option<u64> {
        self.functions.get(function.0 as usize)?.address
    }

    /// The function's name, or else what its code belongs to.
    #[must_use]
    pub fn describe(&self, function: FunctionId) -> &str {
        let count = self.functions.get(function.0 as usize);
        count.map_or("?", |count| count.name.as_str())
    }

    /// Where a call entered its function if nothing names that: the file's own address, as a disassembler shows it, or that in memory if there is
    /// no file. All code of a file that no symbol names is one function to the reconstruction; where they were entered tells its functions apart.
    #[must_use]
    pub fn entry(&self, call: &Call) -> Option<Ip> {
        let count = self.functions.get(call.function.0 as usize);
        if count.is_some_and(|count| count.is_named) {
            return None;
        }
        let moved = self.moved.get(&call.function).copied().unwrap_or(0);
        Some(Ip(call.ip.0.wrapping_sub(moved)))
    }

    /// What to call a call's function: its name, or where it was entered and the name of the file.
    #[must_use]
    pub fn label(&self, call: &Call) -> Cow<'_, str> {
        let name = self.describe(call.function);
        match self.entry(call) {
            None => Cow::Borrowed(name),
            Some(entry) => {
                let file = self.file(call.function).and_then(Path::file_name);
                let file = file.map_or_else(|| name.into(), |file| file.to_string_lossy());
                Cow::Owned(format!("{entry} in {file}"))
            }
        }
    }

    /// Whether its calls save where a later jump goes to: `setjmp` and its like.
    pub(crate) fn saves_jump(&self, function: FunctionId) -> bool {
        self.traits(function).saves_jump
    }

    /// Whether it is where programs begin.
    pub(crate) fn starts_program(&self, function: FunctionId) -> bool {
        self.traits(function).starts_program
    }

    /// Whether its calls end in an exception, always.
    pub(crate) fn throws(&self, function: FunctionId) -> bool {
        self.traits(function).throws
    }

    /// What it does to stacks, if it is of Go's runtime.
    pub(crate) fn go_role(&self, function: FunctionId) -> Option<GoRole> {
        self.traits(function).go
    }

    /// For what it stands, if it is one of the kernel's thunks.
    pub(crate) fn thunk(&self, function: FunctionId) -> Option<Thunk> {
        self.traits(function).thunk
    }

    /// All of that at once.
    #[inline]
    pub(crate) fn traits(&self, function: FunctionId) -> Traits {
        let traits = self.traits.get(function.0 as usize);
        traits.copied().unwrap_or_default()
    }

    /// Where an instruction stands.
    pub(crate) fn at(&mut self, view: &ImageView<'_>, ip: Ip) -> Location {
        let place = view.place(ip);
        let (function, is_first) = self.number(place.as_ref());
        // Where a file begins to run a function begins, even if no symbol says so.
        let is_first = is_first
            || place
                .as_ref()
                .is_some_and(|place| place.file.is_entry(place.offset));
        let symbol = place.as_ref().and_then(Place::symbol);
        let start = symbol.map(|symbol| Ip(ip.0.wrapping_sub(symbol.offset)));
        let is_named = symbol.is_some();
        if !is_named
            && let Some(place) = &place
            && let Some(address) = place.file.address_of_offset(place.offset)
        {
            self.moved.insert(function, ip.0.wrapping_sub(address));
        }
        if let (Some(place), Some(symbol), Some(start)) = (&place, symbol, start)
            && let Some(name) = without_cold(symbol.name)
        {
            let known = self.cold.get(&function).copied();
            let whole = known.unwrap_or_else(|| {
                let whole = whole_of(place, name, symbol.start, start);
                let number = whole.map(|start| self.number(view.place(start).as_ref()).0);
                self.cold.insert(function, number);
                number
            });
            if let Some(function) = whole {
                return Location {
                    function,
                    is_first: false,
                    is_named,
                    start: whole_of(place, name, symbol.start, start),
                };
            }
        }
        Location {
            function,
            is_first,
            is_named,
            start,
        }
    }

    /// A function that was inlined in the code at a place.
    pub(crate) fn inlined(&mut self, place: &Place, name: &str) -> FunctionId {
        let number = self.functions.inlined(place, name);
        if number == self.traits.len() {
            self.traits.push(Traits::default());
        }
        FunctionId(number as u32)
    }

    /// The function at a place, and whether that is its first instruction.
    fn number(&mut self, place: Option<&Place>) -> (FunctionId, bool) {
        let (number, is_first) = self.functions.function(place);
        if number == self.traits.len() {
            let name = place.and_then(Place::symbol).map(|symbol| symbol.name);
            self.traits.push(Traits {
                saves_jump: name.is_some_and(saves_jump),
                starts_program: name == Some("_start"),
                throws: name.is_some_and(throws),
                go: name.and_then(go_role),
                thunk: name.and_then(thunk),
            });
        }
        (FunctionId(number as u32), is_first)
    }
}

/// The name of the function that a cold part belongs to.
fn without_cold(name: &str) -> Option<&str> {
    let (name, rest) = name.rsplit_once(".cold")?;
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    (rest.is_empty() || rest.strip_prefix('.').is_some_and(is_number)).then_some(name)
}

/// Where the function of this name begins, in the file of a cold part that begins at `cold` in the file and at `at` in memory. Of several
/// with this name, the one nearest before it.
fn whole_of(place: &Place, name: &str, cold: u64, at: Ip) -> Option<Ip> {
    let mut found: Option<u64> = None;
    place.file.for_each_function(|other, start| {
        if other == name && found.is_none_or(|found| start.abs_diff(cold) < found.abs_diff(cold)) {
            found = Some(start);
        }
    });
    found.map(|start| Ip(at.0.wrapping_add(start.wrapping_sub(cold))))
}

fn throws(name: &str) -> bool {
    let name = name.split('@').next().unwrap_or(name);
    matches!(name, "_Unwind_Resume" | "__cxa_throw" | "__cxa_rethrow")
}

fn go_role(name: &str) -> Option<GoRole> {
    // Functions with the older of Go's two calling conventions have it in their names.
    match name.strip_suffix(".abi0").unwrap_or(name) {
        "runtime.mcall" | "runtime.morestack" => Some(GoRole::Parks),
        "runtime.gogo" => Some(GoRole::Resumes),
        "runtime.goexit0" => Some(GoRole::Ends),
        "runtime.recovery" => Some(GoRole::Recovers),
        "runtime.goexit" => Some(GoRole::Exit),
        _ => None,
    }
}

fn thunk(name: &str) -> Option<Thunk> {
    match name.strip_prefix("__x86_") {
        Some("return_thunk") => Some(Thunk::Return),
        Some(name) if name.starts_with("indirect_") && name.contains("thunk") => {
            Some(Thunk::Indirect)
        }
        _ => None,
    }
}

fn saves_jump(name: &str) -> bool {
    // Versions stand behind an @.
    let name = name.split('@').next().unwrap_or(name);
    matches!(
        name,
        "setjmp" | "_setjmp" | "__setjmp" | "sigsetjmp" | "__sigsetjmp" | "__GI___sigsetjmp"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cold_parts() {
        assert_eq!(without_cold("f.cold"), Some("f"));
        assert_eq!(without_cold("_Z1fv.cold.12"), Some("_Z1fv"));
        assert_eq!(without_cold("f.constprop.0.cold"), Some("f.constprop.0"));
        assert_eq!(without_cold("f.colder"), None);
        assert_eq!(without_cold("f.part.0"), None);
    }
}
