//! How a process that is about to run its first instruction is made to execute QEMU instead, with its own arguments and its own
//! environment.
//!
//! Its own system calls do it: one for memory in which the new words are put, and the `execve`.

use super::launch::Qemu;
use crate::ptrace::sys::{self, Regs};
use libc::pid_t;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// More arguments or variables than the kernel lets a program have.
const MANY: u64 = 1 << 20;
/// A string may be longer than the kernel's limit by nobody.
const LONG: usize = 1 << 18;
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Which of its calls a process is about to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    /// For memory.
    Map,
    /// For QEMU.
    Execute,
}

/// A process that is made to execute QEMU, and what it was before in case that it cannot.
pub(super) struct Becoming {
    before: Regs,
    /// What stands where the program begins.
    code: [u8; 8],
    words: Words,
    call: Call,
    /// The call has begun.
    called: bool,
}

/// Why a program runs without QEMU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Escape {
    #[error("it is a 32-bit program, or one for another machine")]
    OtherMachine,
    #[error("its file has another name by now")]
    OtherFile,
    #[error("it has another root folder, or other mounts")]
    OtherRoot,
    #[error("it ran as another user, as set-user-ID programs do")]
    OtherUser,
    #[error("it could not execute QEMU")]
    Refused,
}

impl From<Escape> for io::Error {
    fn from(escape: Escape) -> Self {
        Self::other(escape)
    }
}

/// What happens next with such a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// It makes a call.
    Call,
    /// It cannot execute QEMU, and runs its own program.
    Refused,
}

impl Becoming {
    /// Makes it begin.
    pub(super) fn begin(pid: pid_t, qemu: &Qemu, program: &Path, comm: &[u8]) -> io::Result<Self> {
        let mut regs: Regs = sys::no_registers();
        sys::registers(pid, &mut regs)?;
        // The call that has executed the program is done: it is not to be made again.
        regs.orig_rax = u64::MAX;
        let words = Words::collect(pid, regs.rsp, qemu, program, comm)?;
        // SYSCALL where the program would begin.
        let own = read_word(pid, regs.rip)?.to_ne_bytes();
        let mut code = own;
        code[..2].copy_from_slice(&SYSCALL);
        sys::poke(pid, regs.rip, code)?;
        let becoming = Self {
            before: regs,
            code: own,
            words,
            call: Call::Map,
            called: false,
        };
        let map = becoming.map();
        if let Err(error) = sys::set_registers(pid, &map) {
            becoming.undo(pid)?;
            return Err(error);
        }
        Ok(becoming)
    }

    fn map(&self) -> Regs {
        Regs {
            rax: libc::SYS_mmap as u64,
            rdi: 0,
            rsi: self.words.len() as u64,
            rdx: (libc::PROT_READ | libc::PROT_WRITE) as u64,
            r10: (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64,
            r8: u64::MAX,
            r9: 0,
            ..self.before
        }
    }

    /// The process has stopped at the beginning of a call or behind it.
    pub(super) fn stopped(&mut self, pid: pid_t) -> Next {
        if !std::mem::replace(&mut self.called, true) {
            return Next::Call;
        }
        self.called = false;
        if self.call == Call::Map && self.mapped(pid).is_ok() {
            self.call = Call::Execute;
            return Next::Call;
        }
        // If it is gone in between, a status of its own tells.
        let _ = self.undo(pid);
        Next::Refused
    }

    /// The process has memory for the words, or not.
    fn mapped(&self, pid: pid_t) -> io::Result<()> {
        let mut regs: Regs = sys::no_registers();
        sys::registers(pid, &mut regs)?;
        let at = regs.rax;
        if at > -4096_i64 as u64 {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let (bytes, arguments, environment) = self.words.at(at);
        sys::write_memory(pid, at, &bytes)?;
        let execute = Regs {
            rax: libc::SYS_execve as u64,
            // QEMU's path is the first text.
            rdi: at,
            rsi: arguments,
            rdx: environment,
            ..self.before
        };
        sys::set_registers(pid, &execute)
    }

    fn undo(&self, pid: pid_t) -> io::Result<()> {
        sys::poke(pid, self.before.rip, self.code)?;
        sys::set_registers(pid, &self.before)
    }
}

/// A word of a command line: where it is in the process's memory, or in the texts.
#[derive(Clone, Copy, Debug)]
enum Word {
    There(u64),
    Text(usize),
}

/// QEMU's arguments and environment.
struct Words {
    texts: Vec<u8>,
    arguments: Vec<Word>,
    environment: Vec<Word>,
}

impl Words {
    /// From the stack of a new program: the number of arguments, their addresses, 0, those of the environment, 0.
    fn collect(
        pid: pid_t,
        stack: u64,
        qemu: &Qemu,
        program: &Path,
        comm: &[u8],
    ) -> io::Result<Self> {
        let too_many = || io::Error::from_raw_os_error(libc::E2BIG);
        let count = read_word(pid, stack)?;
        if count > MANY {
            return Err(too_many());
        }
        let own = stack + 8;
        let mut environment = Vec::new();
        let list = own + 8 * (count + 1);
        for i in 0.. {
            match read_word(pid, list + 8 * i)? {
                0 => break,
                _ if i > MANY => return Err(too_many()),
                address => environment.push(address),
            }
        }
        let mut words = Self {
            texts: Vec::new(),
            arguments: Vec::new(),
            environment: Vec::new(),
        };
        for word in qemu.prefix(comm, environment.len()) {
            words.argument(&word);
        }
        words.argument("-0".as_ref());
        match count {
            0 => words.argument("".as_ref()),
            _ => words.arguments.push(Word::There(read_word(pid, own)?)),
        }
        words.argument(program.as_os_str());
        for i in 1..count {
            words
                .arguments
                .push(Word::There(read_word(pid, own + 8 * i)?));
        }
        // No variable is for QEMU, nor for what it is loaded by: each gets another name, which the plugin takes away.
        for (i, address) in environment.into_iter().enumerate() {
            let mut text = format!("{i:06x}=").into_bytes();
            read_string(pid, address, &mut text)?;
            let at = words.text(&text);
            words.environment.push(at);
        }
        Ok(words)
    }

    fn text(&mut self, text: &[u8]) -> Word {
        let at = self.texts.len();
        self.texts.extend_from_slice(text);
        self.texts.push(0);
        Word::Text(at)
    }

    fn argument(&mut self, text: &std::ffi::OsStr) {
        let word = self.text(text.as_bytes());
        self.arguments.push(word);
    }

    fn tables(&self) -> usize {
        self.texts.len().next_multiple_of(8)
    }

    /// Bytes that they take.
    fn len(&self) -> usize {
        self.tables() + 8 * (self.arguments.len() + self.environment.len() + 2)
    }

    /// All of it, to be put at an address; where the two tables are then.
    fn at(&self, base: u64) -> (Vec<u8>, u64, u64) {
        let mut bytes = self.texts.clone();
        bytes.resize(self.tables(), 0);
        let tables = [&self.arguments, &self.environment].map(|words| {
            let table = base + bytes.len() as u64;
            for word in words {
                let address = match *word {
                    Word::There(address) => address,
                    Word::Text(at) => base + at as u64,
                };
                bytes.extend_from_slice(&address.to_ne_bytes());
            }
            bytes.extend_from_slice(&[0; 8]);
            table
        });
        (bytes, tables[0], tables[1])
    }
}

fn read_word(pid: pid_t, at: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    match sys::read_memory(pid, at, &mut bytes) {
        8 => Ok(u64::from_ne_bytes(bytes)),
        _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
    }
}

/// Appends a string of the process, without its end.
fn read_string(pid: pid_t, mut at: u64, text: &mut Vec<u8>) -> io::Result<()> {
    while text.len() < LONG {
        // Never beyond the page: what follows may be nothing.
        let mut bytes = [0; 256];
        let len = bytes.len().min(0x1000 - (at & 0xfff) as usize);
        if sys::read_memory(pid, at, &mut bytes[..len]) != len {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        if let Some(end) = bytes[..len].iter().position(|byte| *byte == 0) {
            text.extend_from_slice(&bytes[..end]);
            return Ok(());
        }
        text.extend_from_slice(&bytes[..len]);
        at += len as u64;
    }
    Err(io::Error::from_raw_os_error(libc::E2BIG))
}

/// Whether a process that has executed `program` can execute QEMU for it. An error if not.
pub(super) fn can_become(pid: pid_t, qemu: &Qemu, program: &Path) -> io::Result<()> {
    let there = |path: &Path| {
        let mut there = OsString::from(format!("/proc/{pid}/root"));
        there.push(path);
        std::fs::metadata(there)
    };
    let same =
        |a: std::fs::Metadata, b: std::fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    let exe = format!("/proc/{pid}/exe");
    if !is_x86_64(&exe)? {
        return Err(Escape::OtherMachine.into());
    }
    // Its file may have no name any more.
    let is_there = there(program).map_err(|_| Escape::OtherFile)?;
    if !same(std::fs::metadata(exe)?, is_there) {
        return Err(Escape::OtherFile.into());
    }
    // It may be another user's, who cannot enter our folder.
    if file_user(pid)? != nix::unistd::geteuid().as_raw() {
        return Err(Escape::OtherUser.into());
    }
    for path in [qemu.path(), &qemu.plugin()] {
        let is_there = there(path).map_err(|_| Escape::OtherRoot)?;
        if !same(std::fs::metadata(path)?, is_there) {
            return Err(Escape::OtherRoot.into());
        }
    }
    Ok(())
}

fn is_x86_64(path: &str) -> io::Result<bool> {
    let mut begin = [0; 20];
    File::open(path)?.read_exact(&mut begin)?;
    Ok(begin.starts_with(b"\x7fELF\x02") && begin[18..20] == [62, 0])
}

/// The user whom a process is where it comes to files.
fn file_user(pid: pid_t) -> io::Result<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let user = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let user = user.and_then(|users| users.split_whitespace().nth(3)?.parse().ok());
    user.ok_or_else(|| io::ErrorKind::InvalidData.into())
}
