//! A stack of a deep recursion, in few lines.

/// A line of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    /// The frame of this number.
    Frame(usize),
    /// The last so many frames come so many times more.
    Again { frames: usize, times: usize },
}

/// So many functions may call each other in turn.
const LONGEST: usize = 8;
/// Fewer lines than these are not worth leaving out.
const FEWEST: usize = 4;

/// The lines of a stack with these frames, innermost first: what comes again and again is told once.
pub(crate) fn rows<T: PartialEq>(frames: &[T]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut at = 0;
    while at < frames.len() {
        let rest = &frames[at..];
        let round = (1..=LONGEST)
            .map(|len| (len, times_more(rest, len)))
            .find(|(len, times)| *times > 1 && len * times >= FEWEST);
        let (len, times) = round.unwrap_or((1, 0));
        rows.extend((at..at + len).map(Row::Frame));
        if times > 0 {
            rows.push(Row::Again { frames: len, times });
        }
        at += len * (times + 1);
    }
    rows
}

/// How many times more the first `len` frames come.
fn times_more<T: PartialEq>(frames: &[T], len: usize) -> usize {
    if len > frames.len() {
        return 0;
    }
    let same = frames[len..].iter().zip(frames);
    same.take_while(|(later, frame)| later == frame).count() / len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_recurs_is_told_once() {
        let again = |frames, times| Row::Again { frames, times };
        let frame = Row::Frame;
        assert_eq!(rows(b""), []);
        assert_eq!(rows(b"abc"), [frame(0), frame(1), frame(2)]);
        // Not worth it.
        assert_eq!(rows(b"aaaa"), [0, 1, 2, 3].map(frame));
        assert_eq!(rows(b"abab"), [0, 1, 2, 3].map(frame));
        assert_eq!(
            rows(b"xaaaaam"),
            [frame(0), frame(1), again(1, 4), frame(6)]
        );
        assert_eq!(
            rows(b"xababababam"),
            [
                frame(0),
                frame(1),
                frame(2),
                again(2, 3),
                frame(9),
                frame(10)
            ]
        );
    }

    #[test]
    fn what_is_left_out_is_what_was_there() {
        let mut random = 1_u32;
        for len in 0..400 {
            let frames: Vec<u32> = (0..len)
                .map(|_| {
                    random = random.wrapping_mul(1_103_515_245).wrapping_add(12345);
                    random >> 29 & 1
                })
                .collect();
            let mut whole: Vec<u32> = Vec::new();
            for row in rows(&frames) {
                match row {
                    Row::Frame(number) => {
                        assert_eq!(number, whole.len());
                        whole.push(frames[number]);
                    }
                    Row::Again { frames, times } => {
                        for _ in 0..frames * times {
                            whole.push(whole[whole.len() - frames]);
                        }
                    }
                }
            }
            assert_eq!(whole, frames);
        }
    }
}
