//! `cofi record --verify`: the decoded flow against the engine's own list.

use crate::args::{FlowInput, Names};
use crate::notes::NameWidth;
use crate::{input, notes, progress};
use anyhow::Result;
use cofi_capture::record::TruthStream;
use cofi_flow::Item;
use cofi_packet::Ip;
use cofi_session::Session;
use std::collections::VecDeque;
use std::path::Path;

/// How many instructions before and after a difference are shown.
const AROUND: usize = 5;

/// Compares every stream of `file` with the truth; whether all are equal. The first difference of each stream, and the
/// sum, go to standard error.
pub(crate) fn run(file: &Path, truth: &[TruthStream]) -> Result<bool> {
    let bytes = input::map(file)?;
    let flow_input = FlowInput::of(file, Names::default());
    let session = input::open_flow(&flow_input, &bytes)?;
    let mut equal = !input::report(&session);
    let mut instructions = 0;
    let bar = progress::decoding(session.streams().iter().map(|s| s.len() as u64).sum());
    for stream in truth {
        match compare(&session, stream)? {
            Ok(count) => instructions += count,
            Err(difference) => {
                equal = false;
                bar.suspend(|| eprintln!("cofi: thread {}: {difference}", stream.tid));
            }
        }
        let tid = Some(stream.tid);
        bar.inc(
            session
                .streams()
                .iter()
                .find(|s| s.key().tid() == tid)
                .map_or(0, |s| s.len() as u64),
        );
    }
    bar.finish_and_clear();
    equal &= !input::report_code(&session);
    if equal {
        let threads = truth.len();
        eprintln!(
            "cofi: verified: {} of {} decode as they ran",
            cofi_packet::counted(instructions, "instruction"),
            cofi_packet::counted(threads as u64, "thread")
        );
    }
    Ok(equal)
}

/// The number of instructions if the flow is the truth, or the first difference in words.
fn compare(session: &Session<'_>, truth: &TruthStream) -> Result<Result<u64, String>> {
    let mut addresses = truth.addresses()?;
    let Some(stream) = session
        .streams()
        .iter()
        .find(|s| s.key().tid() == Some(truth.tid))
    else {
        return Ok(match addresses.next() {
            None => Ok(0),
            Some(_) => Err("the file holds no trace of it".into()),
        });
    };
    // Where only the last packets were kept, it is the end of the list that is in the file.
    let is_tail = input::omissions(session).next().is_some();
    if is_tail {
        let items = session.decode(stream);
        let decoded = items.filter(|item| matches!(item, Item::Insn(_))).count();
        let ran = truth.addresses()?.count();
        for ip in addresses.by_ref().take(ran.saturating_sub(decoded)) {
            ip?;
        }
    }
    let mut flow = session.decode(stream);
    let mut before = VecDeque::new();
    let mut count = 0;
    while let Some(item) = flow.next() {
        match item {
            Item::Event(_) => {}
            Item::Error(error) => {
                return Ok(Err(format!(
                    "after {}: {error}",
                    cofi_packet::counted(count, "instruction")
                )));
            }
            Item::Insn(executed) => {
                let expected = addresses.next().transpose()?;
                if expected != Some(executed.ip) {
                    let mut text = format!("instruction {count} differs; the decoded flow:\n");
                    for executed in &before {
                        text += &format!(
                            "      {}\n",
                            notes::line(&mut flow, executed, NameWidth::of(None, false))
                        );
                    }
                    let line = notes::line(&mut flow, &executed, NameWidth::of(None, false));
                    text += &format!("  --> {line}\n    the engine's own list goes on:\n");
                    let rest = expected.into_iter().map(Ok).chain(addresses);
                    for ip in rest.take(AROUND) {
                        text += &format!("      {:16x}\n", ip?.0);
                    }
                    return Ok(Err(text));
                }
                count += 1;
                if before.len() == AROUND {
                    before.pop_front();
                }
                before.push_back(executed);
            }
        }
    }
    Ok(match addresses.next().transpose()? {
        None => Ok(count),
        Some(Ip(ip)) => Err(format!(
            "the decoded flow ends after {}; next was {ip:#x}",
            cofi_packet::counted(count, "instruction")
        )),
    })
}
