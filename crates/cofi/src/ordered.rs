//! Text made by several threads, written in order: that of one segment of a stream after the other.
//!
//! A segment begins at a PSB behind which tracing is on, and is decoded as if nothing stood before it. What is true of the flow there is
//! compared with what was true at the end of the segment before, and only text that begins as it would in the whole stream is written.
//! Where it does not, or where the flow is lost, so that it does not depend on the segment alone how it goes on, the rest of the stream is
//! decoded in one piece: what is written does not depend on the cuts, nor on the number of threads.
//!
//! Memory is bounded: segments are handed out in order, one more than there are threads, and only so much text waits in all their queues.

use crate::args::Parallel;
use crate::progress::Printing;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use cofi_analysis::{FlowState, SegmentStart};
use cofi_packet::StreamOffset;
use cofi_session::{Session, Stream};

/// So many pieces of text may wait in all queues together.
const WAITING: usize = 1024;

/// A part of a stream that is decoded by itself.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) range: Range<StreamOffset>,
    /// Nothing stands before it.
    pub(crate) is_first: bool,
    /// Nothing stands behind it.
    pub(crate) is_last: bool,
}

/// Segments are of about so many bytes, if the user does not say. The text of one is several hundred times longer, and most of it has to find
/// room in its queue.
const SIZE: NonZeroUsize = match NonZeroUsize::new(1 << 16) {
    Some(size) => size,
    None => NonZeroUsize::MIN,
};

/// The segments of a stream.
fn segments(session: &Session<'_>, stream: &Stream<'_>, parallel: Parallel) -> Vec<Segment> {
    let size = parallel.segment.unwrap_or(SIZE);
    let ranges = cofi_analysis::segments(session, stream, size, SegmentStart::Traced);
    let count = ranges.len();
    let numbered = ranges.into_iter().enumerate();
    numbered
        .map(|(number, range)| Segment {
            range,
            is_first: number == 0,
            is_last: number + 1 == count,
        })
        .collect()
}

/// What is true of a flow between two segments.
pub(crate) trait State: Send {
    /// Whether a flow of which this is true at the end of a segment goes on in the next as one that begins there, of which `next` is true.
    fn leads_to(&self, next: &Self) -> bool;
}

impl State for FlowState {
    fn leads_to(&self, next: &Self) -> bool {
        self == next
    }
}

/// What comes from a segment, in this order; text as often as there is some.
enum Message<S> {
    Begin(S),
    Text(Vec<u8>),
    End(End<S>),
}

/// How a segment ended.
pub(crate) struct End<S> {
    /// What is true of the flow at its end; none if that is not certain from the segment alone.
    pub(crate) state: Option<S>,
    /// Whether errors were written.
    pub(crate) errors: bool,
}

/// Memory of text that has been written, to be used again.
type Spare = Mutex<Vec<Vec<u8>>>;

/// Where a segment's text goes.
pub(crate) struct Queue<'p, S> {
    messages: SyncSender<Message<S>>,
    spare: &'p Spare,
}

impl<S> Queue<'_, S> {
    /// What is true of the flow at the segment's beginning: to be called before anything is written.
    pub(crate) fn begin(&self, state: S) -> io::Result<()> {
        self.send(Message::Begin(state))
    }

    fn send(&self, message: Message<S>) -> io::Result<()> {
        // Nobody wants to know any more.
        let closed = |_| io::ErrorKind::BrokenPipe.into();
        self.messages.send(message).map_err(closed)
    }
}

/// Where text goes, much at a time.
pub(crate) trait Sink {
    /// Takes the text, and leaves none.
    fn put(&mut self, text: &mut Vec<u8>) -> io::Result<()>;

    /// Takes note that the text is of what stands before this place.
    fn reached(&mut self, _: StreamOffset) {}
}

impl<S> Sink for Queue<'_, S> {
    fn put(&mut self, text: &mut Vec<u8>) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let mut next = locked(self.spare).pop().unwrap_or_default();
        next.clear();
        self.send(Message::Text(std::mem::replace(text, next)))
    }
}

/// What was written of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// All, and whether there are errors in it.
    Whole { errors: bool },
    /// All before this place and, of what stands behind it, so many bytes of text.
    UpTo { start: StreamOffset, skip: u64 },
}

/// A panic elsewhere ends the scope of the threads with a panic anyway.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Task<S> = (usize, SyncSender<Message<S>>);

/// Writes the text of a stream, as far as it can be made by segments, whatever stands before each.
pub(crate) fn write_stream<S, W>(
    (session, stream): (&Session<'_>, &Stream<'_>),
    parallel: Parallel,
    worker: impl Fn() -> W + Sync,
    out: &mut Out<'_, impl Write>,
) -> io::Result<Written>
where
    S: State,
    W: FnMut(&Segment, &mut Queue<'_, S>) -> io::Result<End<S>>,
{
    let threads = parallel.threads();
    if threads.get() > 1 {
        let segments = segments(session, stream, parallel);
        if segments.len() > 1 {
            return write(&segments, threads, worker, out);
        }
    }
    Ok(NOTHING)
}

/// Decodes segments on several threads, and writes their text in order as long as each goes on as the one before ended. `worker` makes
/// what decodes them on a thread.
fn write<S, W>(
    segments: &[Segment],
    threads: NonZeroUsize,
    worker: impl Fn() -> W + Sync,
    out: &mut Out<'_, impl Write>,
) -> io::Result<Written>
where
    S: State,
    W: FnMut(&Segment, &mut Queue<'_, S>) -> io::Result<End<S>>,
{
    let (tasks, waiting) = channel::<Task<S>>();
    let waiting = Mutex::new(waiting);
    let spare = Spare::default();
    let next = || locked::<Receiver<Task<S>>>(&waiting).recv().ok();
    let run = || {
        let mut work = worker();
        while let Some((number, messages)) = next() {
            let mut queue = Queue {
                messages,
                spare: &spare,
            };
            if let Some(segment) = segments.get(number)
                && let Ok(end) = work(segment, &mut queue)
            {
                // Nobody may want to know any more.
                let _ = queue.send(Message::End(end));
            }
        }
    };
    std::thread::scope(|scope| {
        let mut started = 0;
        for _ in 0..threads.get().min(segments.len()) {
            if Builder::new().spawn_scoped(scope, run).is_err() {
                break;
            }
            started += 1;
        }
        if started == 0 {
            // Where there can be no threads.
            return Ok(NOTHING);
        }
        collect(segments, tasks, &spare, started + 1, out)
    })
}

/// Hands out the segments, no more than `window` before their text was written.
fn collect<S: State>(
    segments: &[Segment],
    tasks: Sender<Task<S>>,
    spare: &Spare,
    window: usize,
    out: &mut Out<'_, impl Write>,
) -> io::Result<Written> {
    let mut queues: VecDeque<Receiver<Message<S>>> = VecDeque::new();
    let mut handed = 0;
    let room = (WAITING / window).max(1);
    // What was true at the end of the segment before, where that begins, and how much of it was written.
    let mut before: Option<(S, StreamOffset, u64)> = None;
    let mut errors = false;
    for segment in segments {
        while queues.len() < window && handed < segments.len() {
            let (sender, receiver) = sync_channel(room);
            if tasks.send((handed, sender)).is_err() {
                break;
            }
            queues.push_back(receiver);
            handed += 1;
        }
        let start = segment.range.start;
        out.progress.reached(start);
        let mut skip = 0;
        let end = loop {
            let message = queues.front().and_then(|queue| queue.recv().ok());
            match message {
                Some(Message::Begin(state)) => match &before {
                    Some((end, start, skip)) if !end.leads_to(&state) => {
                        let (start, skip) = (*start, *skip);
                        return Ok(Written::UpTo { start, skip });
                    }
                    _ => {}
                },
                Some(Message::Text(text)) => {
                    out.to.write_all(&text)?;
                    skip += text.len() as u64;
                    locked(spare).push(text);
                }
                Some(Message::End(end)) => break end,
                // Its worker gave up.
                None => return Ok(Written::UpTo { start, skip }),
            }
        };
        queues.pop_front();
        errors |= end.errors;
        before = match end.state {
            _ if segment.is_last => None,
            Some(state) => Some((state, start, skip)),
            None => return Ok(Written::UpTo { start, skip }),
        };
    }
    Ok(Written::Whole { errors })
}

/// All of a stream is to be written in one piece.
pub(crate) const NOTHING: Written = Written::UpTo {
    start: StreamOffset(0),
    skip: 0,
};

/// Where the text of all goes, and who is shown how far it is.
pub(crate) struct Out<'w, W> {
    pub(crate) to: &'w mut W,
    pub(crate) progress: &'w Printing,
}

/// Writes what comes behind the first so many bytes.
pub(crate) struct Behind<'b, 'w, W> {
    pub(crate) skip: u64,
    pub(crate) out: &'b mut Out<'w, W>,
}

impl<W: Write> Sink for Behind<'_, '_, W> {
    fn put(&mut self, text: &mut Vec<u8>) -> io::Result<()> {
        let skipped = usize::try_from(self.skip).map_or(text.len(), |skip| skip.min(text.len()));
        self.skip -= skipped as u64;
        self.out.to.write_all(&text[skipped..])?;
        text.clear();
        Ok(())
    }

    fn reached(&mut self, offset: StreamOffset) {
        self.out.progress.reached(offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(count: u64) -> Vec<Segment> {
        (0..count)
            .map(|number| Segment {
                range: StreamOffset(number * 10)..StreamOffset(number * 10 + 10),
                is_first: number == 0,
                is_last: number + 1 == count,
            })
            .collect()
    }

    impl State for u64 {
        fn leads_to(&self, next: &Self) -> bool {
            self == next
        }
    }

    /// Writes segments with three lines each; the one numbered `lost` does not know how it ends, and `other` begins otherwise.
    fn written(threads: usize, lost: u64, other: u64) -> (String, Written) {
        let mut out = Vec::new();
        let worker = || {
            |segment: &Segment, queue: &mut Queue<'_, u64>| {
                let number = segment.range.start.0 / 10;
                queue.begin(if number == other { u64::MAX } else { number })?;
                for line in 0..3 {
                    queue.put(&mut format!("{number}.{line}\n").into_bytes())?;
                }
                let state = (number != lost).then_some(number + 1);
                Ok(End {
                    state,
                    errors: number == 5,
                })
            }
        };
        let threads = NonZeroUsize::new(threads).unwrap();
        let mut to = Out {
            to: &mut out,
            progress: &Printing::of([]),
        };
        let result = write(&segments(40), threads, worker, &mut to).unwrap();
        (String::from_utf8(out).unwrap(), result)
    }

    fn lines(count: u64) -> String {
        let all = (0..count).flat_map(|number| (0..3).map(move |line| (number, line)));
        all.map(|(number, line)| format!("{number}.{line}\n"))
            .collect()
    }

    #[test]
    fn the_order_is_that_of_the_segments() {
        for threads in 1..5 {
            let (text, result) = written(threads, u64::MAX, u64::MAX);
            assert_eq!(text, lines(40));
            assert_eq!(result, Written::Whole { errors: true });
            // What the last one does not know matters to none.
            let (text, result) = written(threads, 39, u64::MAX);
            assert_eq!(text, lines(40));
            assert_eq!(result, Written::Whole { errors: true });
        }
    }

    #[test]
    fn nothing_is_written_that_may_be_otherwise() {
        for threads in 1..5 {
            // From the segment on that does not know how it ends, its own lines skipped.
            let (text, result) = written(threads, 20, u64::MAX);
            assert_eq!(text, lines(21));
            let (start, skip) = (StreamOffset(200), 15);
            assert_eq!(result, Written::UpTo { start, skip });
            // From the segment on before the one that begins otherwise.
            let (text, result) = written(threads, u64::MAX, 21);
            assert_eq!(text, lines(21));
            assert_eq!(result, Written::UpTo { start, skip });
        }
    }

    #[test]
    fn the_first_bytes_are_skipped() {
        let mut out = Vec::new();
        let mut behind = Behind {
            skip: 5,
            out: &mut Out {
                to: &mut out,
                progress: &Printing::of([]),
            },
        };
        for text in ["abc", "def", "ghi"] {
            behind.put(&mut text.as_bytes().to_vec()).unwrap();
        }
        assert_eq!(out, b"fghi");
    }
}
