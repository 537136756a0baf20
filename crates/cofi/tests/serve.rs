//! `cofi serve`: who may ask the server, and what it answers.

mod common;

use common::{STATIC, Scratch, cofi, run};

use serde_json::Value;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::OnceLock;

const PROGRAM: &str = r#"
__attribute__((noinline)) int leaf(int x) { return x * 3; }
__attribute__((noinline)) int middle(int x) { return leaf(x) + leaf(x + 1); }
int main(void) {
    int sum = 0;
    for (int i = 0; i < 20; i++) sum += middle(i);
    return sum == 0;
}
"#;

/// A recording that all tests look at: with what was compiled, where it stays to the end.
fn recording() -> Option<&'static (Scratch, PathBuf)> {
    static RECORDING: OnceLock<Option<(Scratch, PathBuf)>> = OnceLock::new();
    let recorded = RECORDING.get_or_init(|| {
        let scratch = Scratch::new();
        let source = scratch.write("serve.c", PROGRAM);
        let program = scratch.compile(&source, &[STATIC, &["-g"]].concat())?;
        let data = scratch.path("data");
        let mut command = cofi();
        command.args(["record", "--engine", "ptrace", "-o"]);
        let ran = run(command.arg(&data).arg("--").arg(program));
        assert_eq!(ran.code(), 0, "{}", ran.stderr);
        Some((scratch, data))
    });
    recorded.as_ref()
}

/// A server that ends with the test.
struct Serving {
    child: Child,
    port: u16,
    token: String,
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended by itself, which the test has noticed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    fn error(&self) -> String {
        self.json()["error"].as_str().expect("an error").to_owned()
    }
}

impl Serving {
    fn of(files: &[&Path]) -> Self {
        let mut command = cofi();
        command.args(["serve", "--no-open"]).args(files);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("cofi");
        let out = child.stdout.take().expect("its output");
        let mut address = String::new();
        BufReader::new(out)
            .read_line(&mut address)
            .expect("an address");
        let rest = address.trim().strip_prefix("http://127.0.0.1:");
        let (port, token) = rest
            .and_then(|rest| rest.strip_suffix('/')?.split_once('/'))
            .unwrap_or_else(|| panic!("{address}"));
        assert_eq!(token.len(), 32);
        Self {
            port: port.parse().expect("a port"),
            token: token.to_owned(),
            child,
        }
    }

    /// Sends a request as it stands.
    fn send(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        stream.write_all(request.as_bytes()).expect("it is sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("{:?}", String::from_utf8_lossy(&answer)));
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        Answer {
            status: status.expect("a status"),
            body: answer[end + 4..].to_vec(),
            head,
        }
    }

    /// Asks for a path with other lines of the head.
    fn with(&self, method: &str, path: &str, head: &str) -> Answer {
        self.send(&format!(
            "{method} {path} HTTP/1.1\r\nConnection: close\r\n{head}\r\n"
        ))
    }

    fn host(&self) -> String {
        format!("Host: 127.0.0.1:{}\r\n", self.port)
    }

    fn get(&self, path: &str) -> Answer {
        let path = format!("/{}/{path}", self.token);
        self.with("GET", &path, &self.host())
    }

    /// The answer to a question, once the index is there.
    fn ask(&self, question: &str) -> Value {
        let asks = || {
            let state = self.get("api/state").json();
            let states = state["recordings"].as_array().expect("a list").clone();
            states.iter().all(|state| state["state"] == "ready")
        };
        cofi_test::wait_until("the index is there", asks);
        let answer = self.get(&format!("api/{question}"));
        assert_eq!(answer.status, 200, "{question}: {:?}", answer.json());
        answer.json()
    }
}

#[test]
fn only_who_knows_the_token_is_answered() {
    let Some((_, data)) = recording() else {
        return;
    };
    let server = Serving::of(&[data]);
    let host = server.host();
    let token = &server.token;
    for path in [
        "/",
        "/api/state",
        "//",
        "/app.js",
        "/0123456789abcdef0123456789abcdef/api/state",
    ] {
        let answer = server.with("GET", path, &host);
        assert_eq!((answer.status, answer.body.len()), (404, 0), "{path}");
    }
    let page = server.get("");
    assert_eq!(page.status, 200);
    assert!(
        page.head
            .contains("content-security-policy: default-src 'none'")
    );
    for header in [
        "nosniff",
        "no-referrer",
        "no-store",
        "cross-origin-resource-policy: same-origin",
    ] {
        assert!(page.head.contains(header), "{header}");
    }
    assert!(!page.head.contains("access-control-allow"));
    // Other names of this machine, and other sites.
    let path = format!("/{token}/api/state");
    for head in [
        String::new(),
        "Host: example.com\r\n".to_owned(),
        format!("Host: example.com:{}\r\n", server.port),
        format!("Host: 127.0.0.1:{}\r\n", server.port.wrapping_add(1)),
        format!("{host}Origin: http://example.com\r\n"),
        format!("{host}Origin: null\r\n"),
        format!("{host}Origin: https://127.0.0.1:{}\r\n", server.port),
        format!("{host}{host}"),
    ] {
        let answer = server.with("GET", &path, &head);
        assert!(
            matches!(answer.status, 400 | 403),
            "{head}: {}",
            answer.status
        );
        assert!(!String::from_utf8_lossy(&answer.body).contains("recordings"));
    }
    let own = format!(
        "Host: localhost:{0}\r\nOrigin: http://localhost:{0}\r\n",
        server.port
    );
    assert_eq!(server.with("GET", &path, &own).status, 200);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
        assert_eq!(server.with(method, &path, &host).status, 405, "{method}");
    }
    let head = server.with("HEAD", &path, &host);
    assert_eq!((head.status, head.body.len()), (200, 0));
    let long = format!("{path}?x={}", "x".repeat(20_000));
    assert_eq!(server.with("GET", &long, &host).status, 414);
}

#[test]
fn no_other_file_is_shown() {
    let Some((scratch, data)) = recording() else {
        return;
    };
    let server = Serving::of(&[data]);
    server.ask("functions");
    let secret = scratch.write("secret.c", "not of this program");
    let secret = secret.to_str().expect("a path").to_owned();
    for path in [
        "/etc/passwd",
        "../../etc/passwd",
        "",
        "/",
        &secret,
        "%2e%2e/secret.c",
        "serve.c/../secret.c",
    ] {
        let answer = server.get(&format!("api/source?path={path}"));
        assert_eq!(answer.status, 404, "{path}");
        assert!(
            answer.error().contains("no code of this recording"),
            "{path}"
        );
    }
    for path in [
        "../Cargo.toml",
        "%2e%2e/app.js",
        "..%2fapp.js",
        "style.css/..",
        "page/app.js",
    ] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    let hits = server.ask("search?text=serve.c:2");
    let file = hits["hits"][0]["file"].as_str().expect("a file").to_owned();
    let text = server.ask(&format!("source?path={file}"));
    assert_eq!(text["lines"][1], PROGRAM.lines().nth(1).expect("a line"));
}

#[test]
fn questions_have_answers_and_wrong_ones_errors() {
    let Some((_, data)) = recording() else {
        return;
    };
    let server = Serving::of(&[data]);
    let state = server.ask("state");
    let row = &state["recordings"][0]["rows"][0];
    let insns = row["insns"].as_u64().expect("a number");
    assert!(insns > 500 && row["gaps"] == 0);
    let names = server.ask("functions")["functions"].clone();
    let number = |name: &str| {
        let mut list = names.as_array().expect("a list").iter();
        list.position(|function| function[0] == name)
            .expect("a function")
    };
    let (main, leaf) = (number("main"), number("leaf"));
    assert_eq!((&names[leaf][4], &names[main][4]), (&40.into(), &1.into()));
    let begin = server.ask(&format!("find?what=function&function={main}&at=0"))["at"].as_u64();
    let begin = begin.expect("a place");
    let flame = server.ask(&format!(
        "flame?axis=insns&from={begin}&to={}&width=4000",
        begin + 3000
    ));
    let calls = flame["calls"].as_array().expect("a list");
    assert_eq!(calls.iter().filter(|call| call[3] == leaf).count(), 40);
    let table = server.ask("table?axis=insns");
    assert_eq!(table["insns"], insns);
    let merged = server.ask("merged?axis=insns");
    assert_eq!(merged["nodes"][0][3], insns);
    let around = server.ask(&format!("neighbours?axis=insns&function={leaf}"));
    assert_eq!(around["callers"][0][0], number("middle"));
    let code = server.ask(&format!("code?axis=insns&function={leaf}"));
    assert_eq!(
        (&code["whole"], &code["insns"][0][3]),
        (&true.into(), &40.into())
    );
    let found = server.ask(&format!("find?what=function&function={leaf}&at=0"));
    let at = found["at"].as_u64().expect("a place");
    let place = server.ask(&format!("place?at={at}"));
    assert_eq!(
        (&place["function"], &place["stack"][1]["function"]),
        (&leaf.into(), &number("middle").into())
    );
    let back = server.ask(&format!("step?at={at}&by=out&dir=previous"));
    assert_eq!(back["at"], at - 1);
    let list = server.ask(&format!("insns?at={at}&before=1&behind=3"));
    assert_eq!(list["insns"].as_array().expect("a list").len(), 4);
    assert!(
        server.ask("packets?offset=0")["packets"][0][2]
            .as_str()
            .expect("text")
            .starts_with("psb")
    );
    assert_eq!(
        server.ask("strip?axis=insns&bins=10")["rows"][0]["insns"]
            .as_array()
            .expect("a list")
            .len(),
        10
    );
    for (axis, key) in [("insns", "at"), ("offset", "offset"), ("time", "time")] {
        let events = server.ask(&format!("events?axis={axis}"));
        let list = events["events"].as_array().expect("a list");
        assert!(!list.is_empty());
        for event in list.iter().filter(|event| !event[key].is_null()) {
            assert_eq!(event["value"], event[key], "{axis}: {event}");
        }
    }
    for (question, status) in [
        ("nothing", 404),
        ("place?at=99999999999", 404),
        ("place?at=x", 400),
        ("place", 400),
        ("place?at=1&row=7", 404),
        ("place?at=1&r=1", 404),
        ("flame?axis=width", 400),
        ("strip?rows=0,9", 400),
        ("step?at=1&by=leap", 400),
        ("find?what=ip&value=zz&at=0", 400),
        ("find?what=love&at=0", 400),
        ("code?function=99999", 404),
        ("parting", 404),
        ("find?what=gap&at=0&dir=up", 400),
        ("place?at=-1", 400),
        ("place?at=18446744073709551615", 404),
    ] {
        let answer = server.get(&format!("api/{question}"));
        assert_eq!(answer.status, status, "{question}: {:?}", answer.json());
        assert!(!answer.error().is_empty());
    }
    // The sum of all rows.
    let sum = server.ask("sum?axis=insns&bins=10");
    let bins = sum["insns"].as_array().expect("a list");
    let rows = server.get("api/state").json()["recordings"][0]["rows"].clone();
    let rows = rows.as_array().expect("rows").iter();
    let all: u64 = rows.filter_map(|row| row["insns"].as_u64()).sum();
    let found: u64 = bins.iter().filter_map(Value::as_u64).sum();
    assert_eq!((bins.len(), found), (10, all), "{sum}");
    // However wide and far a question, it is answered.
    for question in [
        "strip?from=18446744073709551615",
        "sum?from=18446744073709551615",
        "flame?from=5&to=1",
        "table?from=18446744073709551614",
        "insns?at=18446744073709551615",
        "packets?offset=18446744073709551615",
        "events?from=99999999999999",
        "at?value=18446744073709551615",
    ] {
        server.ask(question);
    }
}

#[test]
fn two_recordings_part() {
    let Some((scratch, data)) = recording() else {
        return;
    };
    let source = scratch.write("other.c", PROGRAM.replace("i < 20", "i < 21"));
    let Some(program) = scratch.compile(&source, &[STATIC, &["-g"]].concat()) else {
        return;
    };
    let other = scratch.path("other.data");
    let mut command = cofi();
    command.args(["record", "--engine", "ptrace", "-o"]);
    run(command.arg(&other).arg("--").arg(program));
    let server = Serving::of(&[data, &other]);
    // Who goes away before the answer is there takes it from nobody.
    for _ in 0..5 {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("a connection");
        let request = format!(
            "GET /{}/api/parting HTTP/1.1\r\n{}\r\n",
            server.token,
            server.host()
        );
        stream.write_all(request.as_bytes()).expect("it is sent");
    }
    let pairs = server.ask("parting");
    assert_eq!(pairs[0]["same"], false, "{pairs}");
    let place = &pairs[0]["places"][0];
    assert!(place["turns"][0]["at"].as_u64() > Some(0), "{pairs}");
    assert!(server.ask("place?r=1&at=0")["ip"].is_string());
}

/// The index is beside the recording afterwards, and none beside an archive.
#[test]
fn the_index_is_kept_beside_recordings_alone() {
    let Some((scratch, data)) = recording() else {
        return;
    };
    let own = scratch.path("own.data");
    std::fs::copy(data, &own).expect("a copy");
    let index = scratch.path("own.data.index");
    for args in [&[][..], &[Path::new("--no-index-file")]] {
        let _ = std::fs::remove_file(&index);
        let server = Serving::of(&[args, &[&own]].concat());
        server.ask("functions");
        assert_eq!(index.exists(), args.is_empty());
    }
    let archive = scratch.path("own.cofi");
    let mut command = cofi();
    command.arg("archive").arg(data).arg("-o").arg(&archive);
    assert_eq!(run(&mut command).code(), 0);
    let server = Serving::of(&[&archive]);
    let names = server.ask("functions").to_string();
    assert!(names.contains("\"middle\""));
    assert!(!scratch.path("own.cofi.index").exists());
}

#[test]
fn who_asks_too_much_is_refused() {
    let Some((_, data)) = recording() else {
        return;
    };
    let server = Serving::of(&[data]);
    let host = server.host();
    // Who connects and says nothing keeps nobody else from asking.
    let silent = (0..50).map(|_| TcpStream::connect(("127.0.0.1", server.port)));
    let silent: Vec<_> = silent.map(|stream| stream.expect("a connection")).collect();
    server.ask("functions");
    drop(silent);
    let path = format!("/{}/api/state", server.token);
    let long = format!("{host}X: {}\r\n", "x".repeat(100_000));
    assert_eq!(server.with("GET", &path, &long).status, 431);
    let many = host.clone() + &"X: x\r\n".repeat(200);
    assert_eq!(server.with("GET", &path, &many).status, 431);
    // One row is one row, however often it is named.
    let strip = format!("strip?bins=8192&rows={}", vec!["0"; 1000].join(","));
    assert_eq!(server.ask(&strip)["rows"].as_array().map(Vec::len), Some(1));
}

#[test]
fn sources_without_an_end_are_not_waited_for() {
    let scratch = Scratch::new();
    let text = "#line 1 \"/proc/kmsg\"\n\
        __attribute__((noinline)) int one(int x) { return x * 3; }\n\
        #line 1 \"/dev/zero\"\n\
        __attribute__((noinline)) int two(int x) { return x * 5; }\n\
        int main(void) { return one(0) + two(0); }\n";
    let source = scratch.write("endless.c", text);
    let Some(program) = scratch.compile(&source, &[STATIC, &["-g"]].concat()) else {
        return;
    };
    let data = scratch.path("data");
    let mut command = cofi();
    command.args(["record", "--engine", "ptrace", "-o"]);
    let ran = run(command.arg(&data).arg("--").arg(program));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    let server = Serving::of(&[&data]);
    let zero = server.ask("source?path=/dev/zero");
    assert_eq!(zero["error"], "not a file", "{zero}");
    // Its length is said to be nothing; who may not read it is told so.
    let messages = server.ask("source?path=/proc/kmsg");
    let lines = messages["lines"].as_array().map(Vec::len);
    assert!(lines.is_none_or(|lines| lines == 0), "{messages}");
}

/// The recording with so many more threads, each of this name and with a PSB and no more.
fn with_threads(data: &[u8], count: u32, name: &[u8]) -> Vec<u8> {
    let word = |at: usize| u32::from_le_bytes(data[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().expect("eight bytes"));
    const DATA: usize = 40;
    const FEATURES: std::ops::Range<usize> = 72..104;
    const COMM: u32 = 3;
    const AUXTRACE: u32 = 71;
    let (begin, len) = (long(DATA) as usize, long(DATA + 8) as usize);
    let mut out = data[..begin + len].to_vec();
    out[FEATURES].fill(0);
    let mut records = HashMap::new();
    let mut at = begin;
    while at < begin + len {
        let (kind, mut size) = (
            word(at),
            usize::from(data[at + 6]) | usize::from(data[at + 7]) << 8,
        );
        records.entry(kind).or_insert(at..at + size);
        if kind == AUXTRACE {
            size += long(at + 8) as usize;
        }
        at += size;
    }
    let psb = [&[0x02, 0x82].repeat(8)[..], &[0x02, 0x23], &[0; 6]].concat();
    let (comm, trace) = (
        &data[records[&COMM].clone()],
        &data[records[&AUXTRACE].clone()],
    );
    for number in 0..count {
        let tid = (100_000 + number).to_le_bytes();
        // The name has 16 bytes, and what is behind it stays.
        let known = comm[16..]
            .iter()
            .position(|byte| *byte == 0)
            .expect("an end");
        let behind = 16 + (known + 8) / 8 * 8;
        let mut own_name = [0; 16];
        own_name[..name.len()].copy_from_slice(name);
        let mut comm = [&comm[..12], &tid, &own_name, &comm[behind..]].concat();
        let size = comm.len() as u16;
        comm[6..8].copy_from_slice(&size.to_le_bytes());
        let mut trace = trace.to_vec();
        trace[8..16].copy_from_slice(&(psb.len() as u64).to_le_bytes());
        trace[32..36].copy_from_slice(&(1000 + number).to_le_bytes());
        trace[36..40].copy_from_slice(&tid);
        out.extend([comm, trace, psb.clone()].concat());
    }
    let len = (out.len() - begin) as u64;
    out[DATA + 8..DATA + 16].copy_from_slice(&len.to_le_bytes());
    out
}

/// Many threads, with names that are markup, are shown as text; too many are refused with a word.
#[test]
fn many_threads_are_shown_and_too_many_refused() {
    let Some((scratch, data)) = recording() else {
        return;
    };
    let own = std::fs::read(data).expect("the recording");
    let many = scratch.path("many.data");
    std::fs::write(&many, with_threads(&own, 3000, b"</script><b>")).expect("room");
    let server = Serving::of(&[&many]);
    let functions = server.ask("functions")["functions"]
        .as_array()
        .map(Vec::len);
    assert!(functions > Some(3));
    let state = server.ask("state");
    let rows = state["recordings"][0]["rows"].as_array().expect("a list");
    assert_eq!(rows.len(), 3001);
    assert_eq!(rows[7]["comm"], "</script><b>");
    assert!(rows[0]["insns"].as_u64() > Some(500));
    let answer = server.get("api/state");
    assert!(answer.head.contains("content-type: application/json"));
    // As many bins as there may be, of each row one.
    let strip = server.ask("strip?axis=insns&bins=300");
    assert_eq!(strip["rows"].as_array().map(Vec::len), Some(3001));
    assert_eq!(server.get("api/strip?axis=insns&bins=400").status, 400);
    drop(server);
    // A million; and in an archive, which may come from elsewhere, a few too many.
    let archive = scratch.path("many.cofi");
    for (count, is_archive) in [(1_000_000, false), (70_000, true)] {
        std::fs::write(&many, with_threads(&own, count, b"</script><b>")).expect("room");
        let mut file = &many;
        if is_archive {
            let mut command = cofi();
            command.arg("archive").arg(&many).arg("-o").arg(&archive);
            let packed = run(&mut command);
            assert_eq!(packed.code(), 0, "{}", packed.stderr);
            file = &archive;
        }
        let ran = run(cofi().args(["serve", "--no-open"]).arg(file));
        assert_eq!(ran.code(), 2, "{}", ran.stderr);
        let words = format!(
            "packets of {} threads or processors; at most 65536 can be shown",
            count + 1
        );
        assert!(ran.stderr.contains(&words), "{}", ran.stderr);
    }
}
