//! Tables of a TOML document, read key by key: what is missing, misspelt or of the wrong kind is told with its place.

use cofi_session::compact;
use std::cell::RefCell;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What is wrong with a scenario, and where.
#[derive(Debug)]
pub(super) struct Mistake {
    /// Offset of the place in the text.
    at: usize,
    what: String,
}

/// The result of reading a part of a scenario.
pub(super) type Read<T> = Result<T, Mistake>;

impl Mistake {
    pub(super) fn new(at: usize, what: impl Into<String>) -> Self {
        let what = what.into();
        Self { at, what }
    }

    /// `LINE:COLUMN: sentence`, for the text from which the scenario was read.
    pub(super) fn told(&self, text: &str) -> String {
        let mut end = self.at.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let before = &text[..end];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
        format!("{line}:{column}: {}", self.what)
    }
}

/// Reads a document.
pub(super) fn parse(text: &str) -> Read<Spanned<DeTable<'_>>> {
    DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        // Some messages have more than one line.
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        Mistake::new(at, format!("this is no TOML: {message}"))
    })
}

/// A table under reading.
pub(super) struct Table<'t> {
    /// What it is, for messages: `[context]`, operation `jcc`.
    what: String,
    span: Range<usize>,
    entries: &'t DeTable<'t>,
    /// The keys that were asked for.
    asked: RefCell<Vec<&'t str>>,
}

impl<'t> Table<'t> {
    pub(super) fn new(
        what: impl Into<String>,
        span: Range<usize>,
        entries: &'t DeTable<'t>,
    ) -> Self {
        Self {
            what: what.into(),
            span,
            entries,
            asked: RefCell::new(Vec::new()),
        }
    }

    /// Calls it by another name from now on.
    pub(super) fn rename(&mut self, what: String) {
        self.what = what;
    }

    /// What stands under this key, if anything does.
    pub(super) fn get(&self, key: &'t str) -> Option<Field<'t>> {
        self.asked.borrow_mut().push(key);
        let value = self.entries.get(key)?;
        Some(Field {
            key: key.into(),
            at: value.span().start,
            span: value.span(),
            value: value.get_ref(),
        })
    }

    /// What stands under this key.
    pub(super) fn need(&self, key: &'t str) -> Read<Field<'t>> {
        self.get(key)
            .ok_or_else(|| self.mistake(format!("{} needs the key `{key}`", self.what)))
    }

    /// Every key and what stands under it, in the order of the text.
    pub(super) fn all(&self) -> Vec<Field<'t>> {
        let mut fields: Vec<_> = self
            .entries
            .iter()
            .map(|(key, value)| {
                self.asked.borrow_mut().push(key.get_ref().as_ref());
                Field {
                    key: key.get_ref().to_string(),
                    at: key.span().start,
                    span: value.span(),
                    value: value.get_ref(),
                }
            })
            .collect();
        compact::sort_by_key(&mut fields, |field| field.at);
        fields
    }

    pub(super) fn mistake(&self, what: String) -> Mistake {
        Mistake::new(self.span.start, what)
    }

    /// There must be no key that nobody asked for.
    pub(super) fn finish(&self) -> Read<()> {
        let asked = self.asked.borrow();
        let unknown = self
            .entries
            .keys()
            .filter(|key| !asked.contains(&key.get_ref().as_ref()))
            .min_by_key(|key| key.span().start);
        let Some(key) = unknown else {
            return Ok(());
        };
        let mut known = asked.clone();
        known.dedup();
        let what = format!(
            "{} has no key `{}`; it may have: {}",
            self.what,
            key.get_ref(),
            known.join(", ")
        );
        Err(Mistake::new(key.span().start, what))
    }
}

/// A value under a key.
pub(super) struct Field<'t> {
    pub(super) key: String,
    pub(super) at: usize,
    span: Range<usize>,
    value: &'t DeValue<'t>,
}

impl<'t> Field<'t> {
    pub(super) fn mistake(&self, what: impl AsRef<str>) -> Mistake {
        Mistake::new(self.at, format!("`{}`: {}", self.key, what.as_ref()))
    }

    fn expected(&self, what: &str) -> Mistake {
        let found = match self.value {
            DeValue::Integer(number) => format!("{number}"),
            DeValue::String(text) if text.len() <= 40 => format!("{:?}", text.as_ref()),
            DeValue::Boolean(flag) => format!("{flag}"),
            other => format!("a value of the kind {}", other.type_str()),
        };
        self.mistake(format!("expected {what}, found {found}"))
    }

    fn as_number(&self) -> Option<u64> {
        let digits = |text: &str| {
            let text = text.replace('_', "");
            match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => text.parse().ok(),
            }
        };
        match self.value {
            DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
            DeValue::String(text) => digits(text),
            _ => None,
        }
    }

    /// A number that fits the type; "0x…" in quotes is one too.
    pub(super) fn number<T: TryFrom<u64>>(&self) -> Read<T> {
        let bits = 8 * size_of::<T>() as u32;
        self.as_number()
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| self.expected(&format!("a number of at most {bits} bits")))
    }

    /// A number between these.
    pub(super) fn number_in(&self, range: std::ops::RangeInclusive<u64>) -> Read<u64> {
        self.as_number()
            .filter(|number| range.contains(number))
            .ok_or_else(|| {
                let (least, most) = (range.start(), range.end());
                self.expected(&format!("a number from {least} to {most}"))
            })
    }

    pub(super) fn is_number(&self) -> bool {
        self.as_number().is_some()
    }

    pub(super) fn flag(&self) -> Read<bool> {
        match self.value {
            DeValue::Boolean(flag) => Ok(*flag),
            _ => Err(self.expected("true or false")),
        }
    }

    /// A number, or a flag as 0 or 1.
    pub(super) fn number_or_flag(&self) -> Read<u64> {
        match self.value {
            DeValue::Boolean(flag) => Ok((*flag).into()),
            _ => self.number(),
        }
    }

    pub(super) fn text(&self) -> Read<&'t str> {
        match self.value {
            DeValue::String(text) => Ok(text),
            _ => Err(self.expected("a text")),
        }
    }

    /// One of these words.
    pub(super) fn choice<T: Copy>(&self, words: &[(&str, T)]) -> Read<T> {
        let found = self.text().ok().and_then(|text| {
            let word = words.iter().find(|(word, _)| *word == text);
            word.map(|&(_, value)| value)
        });
        found.ok_or_else(|| {
            let all: Vec<_> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
            self.expected(&format!("one of {}", all.join(", ")))
        })
    }

    pub(super) fn is_table(&self) -> bool {
        self.value.is_table()
    }

    pub(super) fn table(&self) -> Read<Table<'t>> {
        match self.value {
            DeValue::Table(entries) => Ok(Table::new(
                format!("`{}`", self.key),
                self.span.clone(),
                entries,
            )),
            _ => Err(self.expected("a table")),
        }
    }

    /// The members of an array.
    pub(super) fn array(&self) -> Read<Vec<Field<'t>>> {
        match self.value {
            DeValue::Array(values) => Ok(values
                .iter()
                .map(|value| Field {
                    key: self.key.clone(),
                    at: value.span().start,
                    span: value.span(),
                    value: value.get_ref(),
                })
                .collect()),
            _ => Err(self.expected("a list")),
        }
    }

    /// The members of an array of exactly so many.
    pub(super) fn members<const N: usize>(&self) -> Read<[Field<'t>; N]> {
        <[Field<'t>; N]>::try_from(self.array()?)
            .map_err(|_| self.expected(&format!("a list of {N} values")))
    }
}
