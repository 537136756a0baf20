//! Instructions of a recording as people read them: steps through the source.

use crate::source_text::SourceText;
use cofi_analysis::diff::Spot;
use cofi_image::{LineFinder, Place, SourceLine};
use std::rc::Rc;

/// What is read of source files and debugging information.
#[derive(Default)]
pub(super) struct Reader {
    sources: LineFinder,
    texts: SourceText,
}

/// Instructions that belong together: those of a line, or of a function whose lines are not known.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) function: String,
    pub(super) source: Option<SourceLine>,
    /// The line's text, or the first instruction.
    pub(super) text: Option<String>,
    pub(super) insns: u64,
}

impl Reader {
    pub(super) fn source(&mut self, spot: &Spot) -> Option<SourceLine> {
        self.sources.at(spot.place.as_ref()?)
    }

    fn text(&mut self, source: &SourceLine) -> Option<String> {
        let file: Rc<str> = source.file.as_str().into();
        let text = self.texts.line(&file, source.line?)?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// The first few steps that these instructions are. If they are for people, lines whose text is not there are not told apart.
    pub(super) fn steps(&mut self, spots: &[Spot], most: usize, for_people: bool) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        for spot in spots {
            let source = self.source(spot);
            let function = function(spot);
            if let Some(last) = steps.last_mut()
                && last.function == function
                && (last.source == source || for_people && last.text.is_none())
            {
                last.insns += 1;
                continue;
            }
            let text = match &source {
                Some(source) => self.text(source),
                None => disassembled(spot).filter(|_| !for_people || steps.is_empty()),
            };
            if for_people
                && text.is_none()
                && let Some(last) = steps.last_mut()
                && last.function == function
            {
                last.insns += 1;
                continue;
            }
            if steps.len() >= most {
                break;
            }
            steps.push(Step {
                function,
                source,
                text,
                insns: 1,
            });
        }
        steps
    }
}

/// The instruction itself.
pub(super) fn disassembled(spot: &Spot) -> Option<String> {
    Some(cofi_insn::text(&spot.bytes()?, spot.ip, spot.mode))
}

/// A function's name without the version that the C library's have.
pub(super) fn unversioned(name: &str) -> String {
    let Some((before, version)) = name.split_once('@') else {
        return name.to_owned();
    };
    let offset = version.find('+').and_then(|at| version.get(at..));
    format!("{before}{}", offset.unwrap_or_default())
}

/// The function, or the file, in which an instruction is.
pub(super) fn function(spot: &Spot) -> String {
    let place = spot.place.as_ref();
    let name = place
        .and_then(Place::symbol)
        .map(|symbol| unversioned(&symbol.demangled()));
    name.or_else(|| {
        let path = place?.owner();
        let name = path.file_name().unwrap_or(path.as_os_str());
        Some(format!("[{}]", name.to_string_lossy()))
    })
    .unwrap_or_else(|| "?".to_owned())
}

/// File and line, short.
pub(super) fn short(source: &SourceLine) -> String {
    let name = source.file.rsplit('/').next().unwrap_or_default();
    match source.line {
        Some(line) => format!("{name}:{line}"),
        None => name.to_owned(),
    }
}

/// Function and offset.
pub(super) fn place(spot: &Spot) -> String {
    let place = spot.place.as_ref().map(ToString::to_string);
    place.unwrap_or_else(|| spot.ip.to_string())
}
