//! Goes along two flows, and finds where they come together after they parted.

use std::sync::mpsc::Receiver;

use cofi_image::Place;
use rustc_hash::FxHashMap;

use super::feed::{Batch, FunctionName, Missing};
use super::side::{Next, Side};
use super::tokens::Tokens;
use super::walk::Walk;
use super::{DiffOptions, Level, Parting, PartingCause, Spot, ThreadDiff, Turn};
use crate::calls::CallKind;

/// So many instructions that come are told of each side.
const COMING: usize = 200;

/// So many symbols ahead are looked at on each side.
const AHEAD: usize = 1 << 18;

/// What looking ahead may cost beyond what was gone past.
const CREDIT: u64 = 1 << 23;

/// So many gaps of a side are listed.
const GAPS: usize = 100;

/// Compares two flows.
pub(super) struct Differ<'m> {
    sides: [Side; 2],
    tokens: Tokens<'m>,
    options: DiffOptions,
    diff: ThreadDiff,
    /// What looking ahead has cost.
    cost: u64,
    /// So many symbols have to be the same.
    run: usize,
    /// Instructions gone past when the flows came together last.
    since: [u64; 2],
}

/// Where the flows come together, by the numbers of instructions.
type Meeting = [u64; 2];

impl<'m> Differ<'m> {
    pub(super) fn new(
        [a, b]: [Receiver<Batch>; 2],
        tokens: Tokens<'m>,
        options: &DiffOptions,
    ) -> Self {
        let run = match tokens.level() {
            Level::Instructions => 8,
            Level::Lines => 3,
            Level::Functions => 2,
        };
        Self {
            sides: [Side::new(0, a), Side::new(1, b)],
            tokens,
            options: *options,
            diff: ThreadDiff::default(),
            cost: 0,
            run,
            since: [0; 2],
        }
    }

    pub(super) fn run(mut self) -> ThreadDiff {
        loop {
            let next = self.equal();
            for (index, side) in self.sides.iter_mut().enumerate() {
                let left_out = std::mem::take(&mut side.left_out);
                self.diff.left_out[index] += left_out;
                self.diff.equal[index] += side.at - self.since[index] - left_out;
            }
            if next == [Next::End; 2] {
                break;
            }
            self.part(next);
            self.since = [self.sides[0].at, self.sides[1].at];
        }
        self.diff.insns = [self.sides[0].at, self.sides[1].at];
        self.diff.by_bytes = self.tokens.by_bytes;
        self.diff
    }

    /// Goes on as long as both sides are the same. What comes then.
    fn equal(&mut self) -> [Next; 2] {
        let Self { sides, tokens, .. } = self;
        let [a, b] = sides;
        loop {
            a.fill(tokens);
            b.fill(tokens);
            if Side::pass_equal(a, b, tokens) {
                continue;
            }
            match (a.peek(tokens), b.peek(tokens)) {
                (Next::Token(x), Next::Token(y)) if x == y => {
                    a.take(x);
                    b.take(y);
                }
                (x, y) => return [x, y],
            }
        }
    }

    /// The flows part here.
    fn part(&mut self, next: [Next; 2]) {
        let last = match self.sides.each_ref().map(Side::last_spot) {
            [Some(a), Some(b)] => Some([a, b]),
            _ => None,
        };
        let is_wanted = self.diff.partings.len() < self.options.partings;
        let gone = self.sides.each_ref().map(|side| side.at);
        let mut turns = [Turn::default(), Turn::default()];
        let mut has_gap = false;
        for (side, turn) in self.sides.iter_mut().zip(&mut turns) {
            let missing = side.take_gaps();
            has_gap |= !missing.is_empty();
            side.settle();
            side.list_entered();
            turn.before = side.at;
            turn.tsc = side.tsc;
            if is_wanted {
                turn.frames = side.frames();
                turn.coming = side.coming(COMING, &mut self.tokens);
            }
            note(turn, missing);
        }
        let place = last.as_ref().and_then(|[a, _]| a.place.as_ref());
        let in_strings = self.is_in_strings(place);
        let in_lock = self.sides.iter().all(|side| {
            let function = side
                .open
                .last()
                .and_then(|open| side.function(open.function));
            function.is_some_and(|function| {
                function.is_named && is_lock_function(&function.name, is_of_library(function))
            })
        });
        let (meeting, lowest) = self.meet(has_gap, &mut turns);
        for (side, (turn, gone)) in self.sides.iter_mut().zip(turns.iter_mut().zip(gone)) {
            turn.skipped = side.at - gone;
            // What these called in turn says less.
            let entered = side.take_entered();
            let outermost = entered.iter().map(|open| open.depth).min();
            let outermost = entered.iter().filter(|open| Some(open.depth) == outermost);
            turn.entered = outermost.map(|open| side.frame(open)).collect();
        }
        let cause = match self.cause(next, has_gap, &turns) {
            PartingCause::Other
                if meeting && in_strings && lowest >= -1 && called_nothing(&turns) =>
            {
                PartingCause::Strings
            }
            PartingCause::Other if in_lock => PartingCause::Lock,
            cause => cause,
        };
        for (index, turn) in turns.iter().enumerate() {
            self.diff.gaps[index] += turn.missing.len() as u64;
            let list = &mut self.diff.missing[index];
            let room = GAPS.saturating_sub(list.len());
            list.extend(turn.missing.iter().take(room).copied());
        }
        if cause == PartingCause::Strings && !self.options.strict {
            self.diff.aside += 1;
            for (sum, turn) in self.diff.aside_insns.iter_mut().zip(&turns) {
                *sum += turn.skipped;
            }
            return;
        }
        // Two recordings with the same gap, or that end with one, do not part by that.
        if cause == PartingCause::Gap && turns.iter().all(|turn| turn.skipped == 0) {
            let Self { sides, tokens, .. } = self;
            if turns.iter().all(|turn| !turn.missing.is_empty())
                || sides.iter_mut().all(|side| !side.fill(tokens))
            {
                return;
            }
        }
        self.diff.count += 1;
        if is_wanted {
            let together = match (meeting, self.spots()) {
                (true, [Some(a), Some(b)]) => Some([a, b]),
                _ => None,
            };
            self.diff.partings.push(Parting {
                index: self.diff.equal[0],
                last,
                turns,
                cause,
                together,
            });
        }
    }

    /// The instructions that come next.
    fn spots(&mut self) -> [Option<Spot>; 2] {
        let Self { sides, tokens, .. } = self;
        sides.each_mut().map(|side| side.coming(1, tokens).pop())
    }

    fn cause(&self, next: [Next; 2], has_gap: bool, turns: &[Turn; 2]) -> PartingCause {
        if has_gap || turns.iter().any(|turn| !turn.missing.is_empty()) {
            return PartingCause::Gap;
        }
        if let Some(ended) = next.iter().position(|next| *next == Next::End) {
            return PartingCause::End(ended);
        }
        for (index, turn) in turns.iter().enumerate() {
            let is_handler = turn
                .entered
                .first()
                .is_some_and(|frame| frame.kind == CallKind::Signal);
            let other = turns.get(1 - index);
            if is_handler && other.is_some_and(|other| other.skipped == 0) {
                return PartingCause::Signal(index);
            }
        }
        PartingCause::Other
    }

    /// Whether both sides are in a function whose way depends on where data lies.
    fn is_in_strings(&mut self, last: Option<&Place>) -> bool {
        let Self { sides, tokens, .. } = self;
        // (The trace of a processor has no calls: the instruction before tells the function.)
        let symbol = last.and_then(Place::symbol);
        let in_library = last.is_some_and(|place| is_c_library(place.file.path()));
        if symbol.is_some_and(|symbol| is_string_function(symbol.name, in_library)) {
            return true;
        }
        let function = |side: &Side| side.function(side.open.last()?.function).cloned();
        let [Some(a), Some(b)] = sides.each_ref().map(function) else {
            return false;
        };
        if a.is_named || b.is_named {
            return [a, b].iter().all(|function| {
                function.is_named && is_string_function(&function.name, is_of_library(function))
            });
        }
        // The C library's symbols may not be there. What goes through memory by wide steps compares in wide registers; the dynamic linker has nothing
        // else that uses these.
        let is_linker = [&a, &b].iter().all(|function| is_dynamic_linker(function));
        let goes_wide = |spot: &Spot| match is_linker {
            true => spot.is_wide(),
            false => spot.compares_wide(),
        };
        is_of_library(&a)
            && is_of_library(&b)
            && sides.iter_mut().any(|side| {
                const NEAR: usize = 24;
                side.coming(NEAR, tokens).iter().any(goes_wide)
            })
    }

    /// Goes on to where the flows come together; `false` if they do not. And how far out of the calls it had to go.
    fn meet(&mut self, has_gap: bool, turns: &mut [Turn; 2]) -> (bool, i32) {
        let with_calls = self.options.has_calls && !has_gap;
        let start = self.sides[0].depth;
        loop {
            let found = self.look_ahead(with_calls);
            if let Some(meeting) = found {
                let Self { sides, tokens, .. } = self;
                for ((side, turn), at) in sides.iter_mut().zip(turns).zip(meeting) {
                    note(turn, side.skip_to(at, tokens));
                }
                return (true, self.sides[0].depth - start);
            }
            // The innermost call is given up.
            let mut out = with_calls;
            let mut depths = [self.sides[0].depth - 1, self.sides[1].depth - 1];
            while out {
                let Self { sides, tokens, .. } = self;
                let mut further = [0; 2];
                for (index, side) in sides.iter_mut().enumerate() {
                    let (is_out, missing) = side.skip_out(depths[index], tokens);
                    note(&mut turns[index], missing);
                    out &= is_out;
                    further[index] = depths[index] - side.depth;
                }
                // Out of several calls at once, as by a jump: the other side has to leave as many.
                if further[0] == further[1] {
                    break;
                }
                let most = further[0].max(further[1]);
                for depth in &mut depths {
                    *depth -= most;
                }
            }
            if !out {
                let Self { sides, tokens, .. } = self;
                for (side, turn) in sides.iter_mut().zip(turns) {
                    note(turn, side.skip_to(u64::MAX, tokens));
                    note(turn, side.take_gaps());
                }
                return (false, i32::MIN);
            }
        }
    }

    /// Searches for the nearest place where both sides are the same again.
    fn look_ahead(&mut self, with_calls: bool) -> Option<Meeting> {
        let Self { sides, tokens, .. } = self;
        let [a, b] = sides;
        let allowed = (CREDIT + 4 * (a.at + b.at)).saturating_sub(self.cost);
        let run = match with_calls {
            true => self.run,
            // Nothing but the instructions themselves tells that it is the same place.
            false => 4 * self.run,
        };
        let mut walks = [Walk::new(a, with_calls), Walk::new(b, with_calls)];
        let mut seen = [Seen::default(), Seen::default()];
        let mut found = None;
        'search: for index in 0..AHEAD {
            let [walk_a, walk_b] = &mut walks;
            if walk_a.cost + walk_b.cost > allowed {
                break;
            }
            let (x, y) = (walk_a.get(index, a, tokens), walk_b.get(index, b, tokens));
            if x.is_none() && y.is_none() {
                break;
            }
            let [seen_a, seen_b] = &mut seen;
            let mut candidates: Vec<(usize, usize)> = Vec::new();
            if let Some(x) = x {
                seen_a.add(x.key, index);
                candidates.extend(seen_b.of(x.key).map(|other| (index, other)));
            }
            if let Some(y) = y {
                seen_b.add(y.key, index);
                candidates.extend(seen_a.of(y.key).map(|other| (other, index)));
            }
            candidates.sort_by_key(|(i, j)| i + j);
            for (i, j) in candidates {
                let (mut same, mut is_end) = (0, false);
                while same < run {
                    match (
                        walk_a.get(i + same, a, tokens),
                        walk_b.get(j + same, b, tokens),
                    ) {
                        (Some(x), Some(y)) if x.key == y.key => same += 1,
                        (None, None) => {
                            is_end = walk_a.is_at_end && walk_b.is_at_end;
                            break;
                        }
                        _ => break,
                    }
                }
                if (same == run || is_end && same > 0)
                    && let (Some(x), Some(y)) = (walk_a.get(i, a, tokens), walk_b.get(j, b, tokens))
                {
                    found = Some([x.at, y.at]);
                    break 'search;
                }
            }
        }
        self.cost += walks.iter().map(|walk| walk.cost).sum::<u64>();
        found
    }
}

fn called_nothing(turns: &[Turn; 2]) -> bool {
    turns.iter().all(|turn| turn.entered.is_empty())
}

fn note(turn: &mut Turn, missing: Vec<Missing>) {
    let missing = missing
        .into_iter()
        .map(|missing| (missing.cause, missing.offset));
    turn.missing.extend(missing);
}

/// Where symbols were seen first.
#[derive(Debug, Default)]
struct Seen(FxHashMap<u64, [u32; Seen::MOST]>);

impl Seen {
    /// So many places of a symbol.
    const MOST: usize = 4;

    fn add(&mut self, key: u64, index: usize) {
        let places = self.0.entry(key).or_insert([u32::MAX; Self::MOST]);
        if let Some(free) = places.iter_mut().find(|place| **place == u32::MAX) {
            *free = index as u32;
        }
    }

    fn of(&self, key: u64) -> impl Iterator<Item = usize> + '_ {
        let places = self.0.get(&key).into_iter().flatten();
        places
            .filter(|place| **place != u32::MAX)
            .map(|place| *place as usize)
    }
}

/// Whether a function of this name goes through memory as that lies: by wide steps, with care for the ends of pages. One that is not of the C
/// library itself, only if the name says for which processor it was made: `__strlen_avx2` of a program that holds the library, but not its own `index`.
fn is_string_function(name: &str, in_library: bool) -> bool {
    let name = name
        .split('@')
        .next()
        .unwrap_or(name)
        .trim_start_matches('_');
    let name = name.strip_prefix("GI_").unwrap_or(name);
    let mut parts = name.trim_start_matches('_').split('_');
    let name = parts.next().unwrap_or_default();
    let (mut is_made_for, mut is_known) = (in_library, true);
    for part in parts {
        let is_processor = ["sse", "ssse", "avx", "evex"]
            .iter()
            .any(|begin| part.starts_with(begin));
        is_made_for |= is_processor;
        is_known &= is_processor
            || matches!(
                part,
                "unaligned"
                    | "erms"
                    | "rtm"
                    | "no"
                    | "vzeroupper"
                    | "movbe"
                    | "back"
                    | "fast"
                    | "string"
                    | "stosb"
                    | "chk"
                    | "generic"
                    | "nocase"
                    | "l"
                    | "1"
                    | "2"
            );
    }
    is_made_for && is_known && is_string_name(name)
}

fn is_string_name(name: &str) -> bool {
    matches!(
        name,
        "memchr"
            | "memcmp"
            | "memcmpeq"
            | "memcpy"
            | "memmem"
            | "memmove"
            | "mempcpy"
            | "memrchr"
            | "memset"
            | "rawmemchr"
            | "bcmp"
            | "bcopy"
            | "bzero"
            | "stpcpy"
            | "stpncpy"
            | "strcasecmp"
            | "strcasestr"
            | "strcat"
            | "strchr"
            | "strchrnul"
            | "strcmp"
            | "strcpy"
            | "strcspn"
            | "strlen"
            | "strncasecmp"
            | "strncat"
            | "strncmp"
            | "strncpy"
            | "strnlen"
            | "strpbrk"
            | "strrchr"
            | "strspn"
            | "strstr"
            | "strlcpy"
            | "strlcat"
            | "index"
            | "rindex"
            | "wcschr"
            | "wcscmp"
            | "wcscpy"
            | "wcslen"
            | "wcsncmp"
            | "wcsnlen"
            | "wcsrchr"
            | "wmemchr"
            | "wmemcmp"
            | "wmemset"
            | "wmemcpy"
    )
}

/// Whether a function of this name waits for other threads, or wakes them. One that is not of the C library itself, only if it is called as those
/// are.
fn is_lock_function(name: &str, in_library: bool) -> bool {
    let plain = name.trim_start_matches('_').trim_start_matches("GI_");
    let begins = |begin| plain.trim_start_matches('_').starts_with(begin);
    if !in_library && !["lll_", "pthread_"].into_iter().any(begins) {
        return false;
    }
    let parts = [
        "lll_lock",
        "lll_unlock",
        "mutex_",
        "futex",
        "pthread_cond_",
        "rwlock_",
        "sem_wait",
        "sem_post",
        "barrier_wait",
        "pthread_spin_",
    ];
    parts.iter().any(|part| name.contains(part))
}

fn is_of_library(function: &FunctionName) -> bool {
    function.file.as_deref().is_some_and(is_c_library)
}

fn is_dynamic_linker(function: &FunctionName) -> bool {
    let name = function
        .file
        .as_deref()
        .and_then(std::path::Path::file_name);
    name.is_some_and(|name| name.as_encoded_bytes().starts_with(b"ld"))
}

fn is_c_library(path: &std::path::Path) -> bool {
    let name = path.file_name().and_then(std::ffi::OsStr::to_str);
    let beginnings = [
        "libc.so",
        "libc-",
        "libc.musl",
        "libpthread",
        "ld-linux",
        "ld-musl",
        "ld-2",
        "ld.so",
    ];
    name.is_some_and(|name| beginnings.iter().any(|begin| name.starts_with(begin)))
}

#[cfg(test)]
mod name_tests {
    use super::*;

    #[test]
    fn string_functions() {
        for name in [
            "strcmp",
            "__strlen_avx2",
            "__memmove_avx_unaligned_erms",
            "__GI_strlen",
            "__GI___rawmemchr",
            "memcpy@@GLIBC_2.14",
        ] {
            assert!(is_string_function(name, true), "{name}");
        }
        for name in [
            "main",
            "strtol",
            "memory",
            "parse_strlen",
            "malloc",
            "memcmp_pass",
            "index_of_item",
        ] {
            assert!(!is_string_function(name, true), "{name}");
        }
        // In a program itself these may be its own.
        for (name, is_it) in [
            ("__strlen_avx2", true),
            ("__strcmp_sse4_2", true),
            ("index", false),
            ("memcmp", false),
        ] {
            assert_eq!(is_string_function(name, false), is_it, "{name}");
        }
    }

    #[test]
    fn lock_functions() {
        for name in [
            "__lll_lock_wait",
            "___pthread_mutex_lock",
            "__GI___pthread_rwlock_rdlock",
        ] {
            assert!(
                is_lock_function(name, true) && is_lock_function(name, false),
                "{name}"
            );
        }
        assert!(!is_lock_function("mutex_count", false));
        assert!(!is_lock_function("malloc", true));
    }
}
