//! What the editor asks, and what it is told.

use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};

use cofi_analysis::CallKind;
use cofi_index::{Axis, Explorer, Index, IndexOptions, PlaceInfo, SourceLine, Step};
use cofi_packet::Ip;
use cofi_session::Session;
use serde_json::{Value, json};

use crate::breakpoints::{Breakpoints, Set};
use crate::message::{self, MessageError};

/// A recording that was opened for the adapter.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The recording.
    pub session: &'static Session<'static>,
    /// Its bytes.
    pub bytes: &'static [u8],
    /// Where its index may be kept.
    pub index: Option<PathBuf>,
}

/// Opens a recording by its path; an error is a sentence for the user.
pub type Open<'o> = dyn Fn(&Path) -> Result<Recorded, String> + 'o;

/// What the editor asked, and whether it waits for less now.
enum Incoming {
    Request(Value),
    Broken(MessageError),
}

/// Talks to an editor until it disconnects.
///
/// # Errors
///
/// If the streams break, or what comes is not the protocol.
pub fn run(
    input: impl BufRead + Send + 'static,
    output: impl Write + Send + 'static,
    file: Option<PathBuf>,
    open: &Open<'_>,
) -> Result<(), MessageError> {
    let interrupt = Arc::new(AtomicBool::new(false));
    let requests = listen(input, interrupt.clone())?;
    let out = Out {
        stream: Arc::new(Mutex::new((Box::new(output), 0))),
    };
    let mut adapter = Adapter {
        out,
        interrupt,
        file,
        open,
        debugged: None,
        breakpoints: Breakpoints::default(),
        is_configured: false,
        stop_on_entry: true,
    };
    for incoming in requests {
        match incoming {
            Incoming::Broken(error) => return Err(error),
            Incoming::Request(request) => {
                if !adapter.take(&request)? {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Reads what comes on a thread of its own, so that a pause is heard while something is looked for.
fn listen(
    mut input: impl BufRead + Send + 'static,
    interrupt: Arc<AtomicBool>,
) -> io::Result<Receiver<Incoming>> {
    let (send, receive) = channel();
    let thread = std::thread::Builder::new().name("messages".to_owned());
    thread.spawn(move || {
        loop {
            let incoming = match message::read(&mut input) {
                Ok(None) => return,
                Ok(Some(request)) => {
                    let command = request["command"].as_str();
                    if matches!(
                        command,
                        Some("pause" | "disconnect" | "terminate" | "cancel")
                    ) {
                        interrupt.store(true, Ordering::Relaxed);
                    }
                    Incoming::Request(request)
                }
                Err(error) => Incoming::Broken(error),
            };
            let is_last = matches!(incoming, Incoming::Broken(_));
            if send.send(incoming).is_err() || is_last {
                return;
            }
        }
    })?;
    Ok(receive)
}

type Stream = (Box<dyn Write + Send>, u64);

/// Where messages go, from the adapter and from who builds the index.
#[derive(Clone)]
struct Out {
    stream: Arc<Mutex<Stream>>,
}

impl Out {
    fn send(&self, mut message: Value) -> io::Result<()> {
        // A panic elsewhere ends the process anyway.
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let (output, seq) = &mut *stream;
        *seq += 1;
        message["seq"] = (*seq).into();
        message::write(output, &message)
    }

    fn event(&self, event: &str, body: &Value) -> io::Result<()> {
        self.send(json!({"type": "event", "event": event, "body": body}))
    }
}

/// A recording that one steps through.
struct Debugged {
    session: &'static Session<'static>,
    explorer: Explorer<'static>,
    /// Where each row stands.
    at: Vec<u64>,
    /// The open calls that the editor was told of: row and place.
    frames: Vec<(usize, PlaceInfo)>,
}

struct Adapter<'o> {
    out: Out,
    interrupt: Arc<AtomicBool>,
    file: Option<PathBuf>,
    open: &'o Open<'o>,
    debugged: Option<Debugged>,
    breakpoints: Breakpoints,
    is_configured: bool,
    stop_on_entry: bool,
}

/// What a request is answered with, or why it cannot be.
type Answer = Result<Value, String>;

/// So many levels of calls a frame's number leaves room for.
const LEVELS: u64 = 1 << 20;

impl Adapter<'_> {
    /// Takes a request; `false` once the editor is gone.
    fn take(&mut self, request: &Value) -> io::Result<bool> {
        let command = request["command"].as_str().unwrap_or_default().to_owned();
        if request["type"] != "request" {
            return Ok(true);
        }
        let answer = self.answer(&command, &request["arguments"])?;
        let mut response = json!({
            "type": "response",
            "request_seq": request["seq"],
            "command": command,
            "success": answer.is_ok(),
        });
        match answer {
            Ok(body) => response["body"] = body,
            Err(why) => {
                response["message"] = why.clone().into();
                response["body"] = json!({"error": {"id": 1, "format": why, "showUser": true}});
            }
        }
        let is_well = response["success"] == true;
        self.out.send(response)?;
        self.afterwards(&command, &request["arguments"], is_well)?;
        Ok(!matches!(command.as_str(), "disconnect" | "terminate"))
    }

    fn answer(&mut self, command: &str, arguments: &Value) -> io::Result<Answer> {
        Ok(match command {
            "initialize" => Ok(capabilities()),
            "launch" | "attach" => self.launch(arguments)?,
            "configurationDone" | "disconnect" | "terminate" | "pause" | "cancel" => Ok(json!({})),
            "setBreakpoints" => self.set_lines(arguments),
            "setFunctionBreakpoints" => self.set_functions(arguments),
            "setInstructionBreakpoints" => Ok(self.set_instructions(arguments)),
            "setExceptionBreakpoints" => {
                let filters = arguments["filters"].as_array();
                self.breakpoints.at_gaps =
                    filters.is_some_and(|filters| filters.contains(&json!("gaps")));
                Ok(json!({}))
            }
            "threads" => self.with(|debugged| Ok(debugged.threads())),
            "stackTrace" => self.with(|debugged| debugged.stack(arguments)),
            "scopes" => self.with(|debugged| debugged.scopes(arguments)),
            "variables" => self.with(|debugged| debugged.variables(arguments)),
            "disassemble" => self.with(|debugged| debugged.disassemble(arguments)),
            "evaluate" => Err(
                "a trace holds which instructions ran, not registers and memory: nothing can be evaluated".to_owned(),
            ),
            "continue" => self.with(|_| Ok(json!({"allThreadsContinued": true}))),
            "reverseContinue" | "next" | "stepIn" | "stepOut" | "stepBack" | "restart" => {
                self.with(|_| Ok(json!({})))
            }
            "source" => Err("the source is not in the recording".to_owned()),
            _ => Err(format!("{command} is not known")),
        })
    }

    /// What follows an answer.
    fn afterwards(&mut self, command: &str, arguments: &Value, is_well: bool) -> io::Result<()> {
        if !is_well {
            return match command {
                "launch" | "attach" => self.out.event("terminated", &json!({})),
                _ => Ok(()),
            };
        }
        match command {
            "launch" | "attach" => self.out.event("initialized", &json!({})),
            "configurationDone" => {
                self.is_configured = true;
                self.begin()
            }
            "restart" => self.begin(),
            "continue" => self.go_on(arguments, true),
            "reverseContinue" => self.go_on(arguments, false),
            "next" => self.step(arguments, Step::Over, true),
            "stepIn" => self.step(arguments, Step::Line, true),
            "stepOut" => self.step(arguments, Step::Out, true),
            "stepBack" => self.step(arguments, Step::Over, false),
            "pause" => {
                self.interrupt.store(false, Ordering::Relaxed);
                let row = row_of(arguments);
                self.stopped(row, "pause", None, None)
            }
            _ => Ok(()),
        }
    }

    fn with(&mut self, answer: impl FnOnce(&mut Debugged) -> Answer) -> Answer {
        match &mut self.debugged {
            Some(debugged) => answer(debugged),
            None => Err("no recording is open".to_owned()),
        }
    }

    fn launch(&mut self, arguments: &Value) -> io::Result<Answer> {
        let named = arguments["recording"].as_str().map(PathBuf::from);
        let file = named.or_else(|| self.file.clone());
        let file = file.unwrap_or_else(|| PathBuf::from("cofi.data"));
        self.stop_on_entry = arguments["stopOnEntry"].as_bool().unwrap_or(true);
        let recorded = match (self.open)(&file) {
            Ok(recorded) => recorded,
            Err(why) => return Ok(Err(why)),
        };
        let (out, interrupt) = (self.out.clone(), self.interrupt.clone());
        let told = Mutex::new(0);
        let publish = |partial: cofi_index::Partial| {
            let percent = partial.done_bytes * 100 / partial.all_bytes.max(1);
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            if percent >= *told + 10 {
                *told = percent;
                let text = format!("cofi: the index is built: {percent} %\n");
                // An editor that is gone is noticed where it is answered.
                let _ = out.event("output", &json!({"category": "console", "output": text}));
            }
        };
        let Recorded {
            session,
            bytes,
            index,
        } = recorded;
        let options = IndexOptions::default();
        let built = Index::at_hand(
            session,
            bytes,
            index.as_deref(),
            &options,
            &interrupt,
            &publish,
        );
        let Some((index, _)) = built else {
            return Ok(Err("it was cancelled".to_owned()));
        };
        let rows = index.rows().len();
        self.debugged = Some(Debugged {
            session,
            explorer: Explorer::new(session, Arc::new(index)),
            at: vec![0; rows],
            frames: Vec::new(),
        });
        Ok(Ok(json!({})))
    }

    fn set_lines(&mut self, arguments: &Value) -> Answer {
        let path = arguments["source"]["path"].as_str().unwrap_or_default();
        let list = arguments["breakpoints"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let lines: Vec<u32> = list.iter().map(|line| number32(&line["line"])).collect();
        let debugged = self.debugged.as_mut().ok_or("no recording is open")?;
        let set = self
            .breakpoints
            .set_lines(&mut debugged.explorer, path, &lines);
        Ok(told(&set))
    }

    fn set_functions(&mut self, arguments: &Value) -> Answer {
        let list = arguments["breakpoints"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let names = list
            .iter()
            .map(|one| one["name"].as_str().unwrap_or_default().to_owned());
        let names: Vec<String> = names.collect();
        match &mut self.debugged {
            Some(debugged) => Ok(told(
                &self
                    .breakpoints
                    .set_functions(&mut debugged.explorer, &names),
            )),
            None => Err("no recording is open".to_owned()),
        }
    }

    fn set_instructions(&mut self, arguments: &Value) -> Value {
        let list = arguments["breakpoints"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let addresses = list.iter().map(|one| {
            let address = address(one["instructionReference"].as_str()?)?;
            let offset = one["offset"].as_i64().unwrap_or(0);
            Some(address.wrapping_add_signed(offset))
        });
        let addresses: Vec<_> = addresses.collect();
        told(&self.breakpoints.set_instructions(&addresses))
    }

    /// The recording is shown from its beginning: where the program's own code begins, if that is known.
    fn begin(&mut self) -> io::Result<()> {
        let Some(debugged) = &mut self.debugged else {
            return Ok(());
        };
        if !self.is_configured {
            return Ok(());
        }
        debugged.at.fill(0);
        let note = "cofi: what ran is shown as it was recorded. Registers and memory are not in a trace.\n";
        self.out
            .event("output", &json!({"category": "console", "output": note}))?;
        let index = debugged.explorer.index().clone();
        let functions = index.functions().iter().zip(0_u32..);
        let mut mains = functions.filter(|(function, _)| function.name == "main");
        let never = || false;
        if let Some((_, main)) = mains.next() {
            let target = cofi_index::Target::Function(main);
            let rows = 0..index.rows().len();
            let found = rows.filter_map(|row| {
                let at = debugged.explorer.find(row, 0, &target, true, &never)?;
                Some((row, at))
            });
            let found: Vec<(usize, u64)> = found.collect();
            let found = found.into_iter();
            if let Some((row, at)) = found.min_by_key(|(row, at)| debugged.time(*row, *at)) {
                debugged.go_to(row, at);
                if !self.stop_on_entry {
                    return self.go_on(&json!({"threadId": row + 1}), true);
                }
                return self.stopped(row, "entry", None, None);
            }
        }
        match self.stop_on_entry {
            true => self.stopped(0, "entry", None, None),
            false => self.go_on(&json!({"threadId": 1}), true),
        }
    }

    fn stopped(
        &mut self,
        row: usize,
        reason: &str,
        text: Option<&str>,
        breakpoint: Option<u64>,
    ) -> io::Result<()> {
        if let Some(debugged) = &mut self.debugged {
            debugged.frames.clear();
        }
        let mut body = json!({"reason": reason, "threadId": row + 1, "allThreadsStopped": true});
        if let Some(text) = text {
            body["description"] = text.into();
            body["text"] = text.into();
        }
        if let Some(number) = breakpoint.filter(|number| *number > 0) {
            body["hitBreakpointIds"] = json!([number]);
        }
        self.out.event("stopped", &body)
    }

    fn step(&mut self, arguments: &Value, step: Step, forward: bool) -> io::Result<()> {
        let row = row_of(arguments);
        let Some(debugged) = &mut self.debugged else {
            return Ok(());
        };
        let Some(at) = debugged.at.get(row).copied() else {
            return Ok(());
        };
        let by_insn = arguments["granularity"] == "instruction";
        let explorer = &mut debugged.explorer;
        let found = match (step, by_insn) {
            (Step::Line, true) => explorer.step(row, at, Step::Insn, forward),
            (Step::Over, true) => over(explorer, row, at, forward),
            _ => explorer.step(row, at, step, forward),
        };
        match found {
            Some(to) => {
                debugged.go_to(row, to);
                self.stopped(row, "step", None, None)
            }
            None => {
                let (to, text) = match forward {
                    true => (debugged.last(row), "the thread ends here"),
                    false => (0, "the recording begins here"),
                };
                debugged.go_to(row, to);
                self.stopped(row, "step", Some(text), None)
            }
        }
    }

    /// On to the next breakpoint that any thread meets, or back to the one before.
    fn go_on(&mut self, arguments: &Value, forward: bool) -> io::Result<()> {
        self.interrupt.store(false, Ordering::Relaxed);
        let row = row_of(arguments);
        let Some(debugged) = &mut self.debugged else {
            return Ok(());
        };
        let interrupt = self.interrupt.clone();
        let cancel = move || interrupt.load(Ordering::Relaxed);
        let only = arguments["singleThread"] == true;
        let mut best: Option<(Option<u64>, usize, u64, u64, &'static str)> = None;
        for (number, target, reason) in self.breakpoints.all() {
            for other in 0..debugged.at.len() {
                if only && other != row {
                    continue;
                }
                let from = debugged.at[other];
                let found = debugged
                    .explorer
                    .find(other, from, target, forward, &cancel);
                let Some(at) = found else {
                    continue;
                };
                let time = debugged.time(other, at);
                let is_nearer = best.is_none_or(|(known, known_row, known_at, ..)| {
                    let this = if other == known_row {
                        (None, at)
                    } else {
                        (time, at)
                    };
                    let that = if other == known_row {
                        (None, known_at)
                    } else {
                        (known, known_at)
                    };
                    if forward { this < that } else { this > that }
                });
                if is_nearer {
                    best = Some((time, other, at, number, reason));
                }
            }
        }
        if self.interrupt.swap(false, Ordering::Relaxed) {
            // The pause that follows says so.
            return Ok(());
        }
        match best {
            Some((_, row, at, number, reason)) => {
                debugged.go_to(row, at);
                self.stopped(row, reason, None, Some(number))
            }
            None => {
                let (at, text) = match forward {
                    true => (debugged.last(row), "the recording ends here"),
                    false => (0, "the recording begins here"),
                };
                debugged.go_to(row, at);
                self.stopped(row, "pause", Some(text), None)
            }
        }
    }
}

/// By one instruction; a call is gone over.
fn over(explorer: &mut Explorer<'_>, row: usize, at: u64, forward: bool) -> Option<u64> {
    let depth = |explorer: &mut Explorer<'_>, at| {
        let place = explorer.place(row, at)?;
        let mut frames = place.stack.iter();
        let frame = frames.find(|frame| frame.kind != CallKind::Inline);
        Some(frame.map_or((0, 0), |frame| (frame.depth, frame.begin)))
    };
    let here = depth(explorer, at)?.0;
    let mut next = explorer.step(row, at, Step::Insn, forward)?;
    loop {
        let (there, begin) = depth(explorer, next)?;
        if there <= here {
            return Some(next);
        }
        next = match forward {
            true => explorer.step(row, next, Step::Out, true)?,
            false => begin.checked_sub(1)?,
        };
    }
}

fn capabilities() -> Value {
    json!({
        "supportsConfigurationDoneRequest": true,
        "supportsStepBack": true,
        "supportsDisassembleRequest": true,
        "supportsSteppingGranularity": true,
        "supportsFunctionBreakpoints": true,
        "supportsInstructionBreakpoints": true,
        "supportsRestartRequest": true,
        "supportsTerminateRequest": true,
        "supportsSingleThreadExecutionRequests": true,
        "exceptionBreakpointFilters": [
            {"filter": "gaps", "label": "Gaps", "description": "Where trace is missing", "default": true},
        ],
    })
}

fn told(set: &[Set]) -> Value {
    let list = set.iter().map(|set| match set {
        Ok((number, None)) => json!({"id": number, "verified": true}),
        Ok((number, Some(line))) => json!({"id": number, "verified": true, "line": line}),
        Err(why) => json!({"verified": false, "message": why}),
    });
    json!({"breakpoints": list.collect::<Vec<_>>()})
}

fn row_of(arguments: &Value) -> usize {
    let thread = arguments["threadId"].as_u64().unwrap_or(1);
    usize::try_from(thread)
        .unwrap_or(usize::MAX)
        .saturating_sub(1)
}

fn number32(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap_or(0)).unwrap_or(u32::MAX)
}

fn address(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn source(line: Option<&SourceLine>) -> (Value, u32) {
    match line {
        None => (Value::Null, 0),
        Some(line) => {
            let path = Path::new(&line.file);
            let name = path.file_name().map(|name| name.to_string_lossy());
            let mut source = json!({"name": name, "path": line.file});
            if !path.exists() {
                source["presentationHint"] = "deemphasize".into();
            }
            (source, line.line.unwrap_or(0))
        }
    }
}

impl Debugged {
    fn last(&self, row: usize) -> u64 {
        let rows = self.explorer.index().rows();
        rows.get(row).map_or(0, |row| row.insns.saturating_sub(1))
    }

    fn time(&self, row: usize, at: u64) -> Option<u64> {
        self.explorer.index().rows().get(row)?.value(Axis::Time, at)
    }

    /// A thread goes to a place; the others to where they were then.
    fn go_to(&mut self, row: usize, at: u64) {
        let index = self.explorer.index().clone();
        let time = self.time(row, at);
        for (number, (place, known)) in self.at.iter_mut().zip(index.rows()).enumerate() {
            if number == row {
                *place = at;
            } else if let Some(time) = time {
                *place = known
                    .at(Axis::Time, time)
                    .min(known.insns.saturating_sub(1));
            }
        }
    }

    fn threads(&self) -> Value {
        let rows = self.explorer.index().rows().iter().zip(1..);
        let list = rows.map(|(row, id)| {
            let name = match (row.cpu, &row.comm) {
                (Some(cpu), _) => format!("processor {cpu}"),
                (None, Some(comm)) => format!("{comm} ({})", row.tid),
                (None, None) => format!("thread {}", row.tid),
            };
            json!({"id": id, "name": name})
        });
        json!({"threads": list.collect::<Vec<_>>()})
    }

    fn stack(&mut self, arguments: &Value) -> Answer {
        let row = row_of(arguments);
        let at = self.at.get(row).copied();
        let at = at.ok_or_else(|| format!("there is no thread {}", row + 1))?;
        let Some(place) = self.explorer.place(row, at) else {
            return Ok(json!({"stackFrames": [], "totalFrames": 0}));
        };
        let index = self.explorer.index().clone();
        let number = self.frames.len() as u64;
        let from = arguments["startFrame"].as_u64().unwrap_or(0) as usize;
        let most = match arguments["levels"].as_u64().unwrap_or(0) {
            0 => usize::MAX,
            levels => usize::try_from(levels).unwrap_or(usize::MAX),
        };
        let frames = place.stack.iter().enumerate().skip(from).take(most);
        let frames = frames.map(|(level, frame)| {
            let function = frame
                .function
                .and_then(|number| index.functions().get(number as usize));
            let (source, line) = source(frame.source.as_ref());
            let name = function.map_or("not known", |function| function.name.as_str());
            let name = match frame.kind {
                CallKind::Inline => format!("{name} (inlined)"),
                CallKind::Assumed => format!("{name} (open before the trace)"),
                _ => name.to_owned(),
            };
            let mut told = json!({
                "id": number * LEVELS + (level as u64).min(LEVELS - 1) + 1,
                "name": name,
                "line": line,
                "column": 0,
            });
            if !source.is_null() {
                told["source"] = source;
            }
            if let Some(ip) = frame.ip {
                told["instructionPointerReference"] = ip.to_string().into();
            }
            if frame.kind == CallKind::Assumed {
                told["presentationHint"] = "subtle".into();
            }
            told
        });
        let frames: Vec<Value> = frames.collect();
        let total = place.stack.len();
        self.frames.push((row, place));
        Ok(json!({"stackFrames": frames, "totalFrames": total}))
    }

    /// The place and the level that the number of a frame stands for.
    fn frame(&self, number: u64) -> Option<(&PlaceInfo, usize, usize)> {
        let number = number.checked_sub(1)?;
        let (row, place) = self.frames.get(usize::try_from(number / LEVELS).ok()?)?;
        Some((place, (number % LEVELS) as usize, *row))
    }

    fn scopes(&self, arguments: &Value) -> Answer {
        let number = arguments["frameId"].as_u64().unwrap_or(0);
        self.frame(number).ok_or("there is no such frame")?;
        Ok(json!({"scopes": [{"name": "Trace", "variablesReference": number, "expensive": false}]}))
    }

    fn variables(&self, arguments: &Value) -> Answer {
        let number = arguments["variablesReference"].as_u64().unwrap_or(0);
        let (place, level, row) = self.frame(number).ok_or("there is no such frame")?;
        let frame = place.stack.get(level).ok_or("there is no such frame")?;
        let rows = self.explorer.index().rows();
        let of = rows.get(row).map_or(0, |row| row.insns);
        let unit = if self.session.time_conversion().is_some() {
            "ns"
        } else {
            "ticks"
        };
        let time = match place.time {
            Some((from, to)) if from == to => format!("about {from} {unit}"),
            Some((from, to)) => format!("between {from} and {to} {unit}"),
            None => "the trace tells no time".to_owned(),
        };
        let began = format!("at instruction {}, by {}", frame.begin, frame.kind.name());
        let list = [
            ("instruction", format!("{} of {of}", place.at)),
            ("time", time),
            ("call began", began),
            ("packets", format!("about byte {}", place.offset)),
            ("registers, memory", "not in a trace".to_owned()),
        ];
        let list = list.iter();
        let list = list
            .map(|(name, value)| json!({"name": name, "value": value, "variablesReference": 0}));
        Ok(json!({"variables": list.collect::<Vec<_>>()}))
    }

    fn disassemble(&mut self, arguments: &Value) -> Answer {
        let text = arguments["memoryReference"].as_str().unwrap_or_default();
        let base = address(text).ok_or_else(|| format!("{text:?} is no address"))?;
        let base = base.wrapping_add_signed(arguments["offset"].as_i64().unwrap_or(0));
        let count = arguments["instructionCount"]
            .as_u64()
            .unwrap_or(0)
            .min(4096) as i64;
        let shift = arguments["instructionOffset"]
            .as_i64()
            .unwrap_or(0)
            .clamp(-4096, 4096);
        let (row, at) = match self.frames.last() {
            Some((row, place)) => (*row, place.at),
            None => (0, self.at.first().copied().unwrap_or(0)),
        };
        let before = (-shift).max(0);
        let behind = (shift + count).max(0);
        let lines = self
            .explorer
            .disassemble(row, at, Ip(base), before as usize, behind as usize);
        let here = lines.iter().position(|line| line.ip.0 == base).unwrap_or(0) as i64;
        let list = (0..count).map(|number| {
            let index = here + shift + number;
            let known = usize::try_from(index).ok().and_then(|index| lines.get(index));
            let Some(line) = known else {
                // As many as were asked for, or the editor does not know where it is.
                let ip = base.wrapping_add_signed(shift + number);
                return json!({"address": format!("{ip:#x}"), "instruction": "(not known)", "presentationHint": "invalid"});
            };
            let bytes: Vec<String> = line.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let mut told = json!({
                "address": line.ip.to_string(),
                "instructionBytes": bytes.join(" "),
                "instruction": line.text,
            });
            if let Some(name) = &line.function {
                told["symbol"] = name.as_str().into();
            }
            let (source, number) = source(line.source.as_ref());
            if !source.is_null() && number > 0 {
                told["location"] = source;
                told["line"] = number.into();
            }
            told
        });
        Ok(json!({"instructions": list.collect::<Vec<_>>()}))
    }
}
