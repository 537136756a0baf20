//! Which functions a person means by a name.

use crate::output::tell;
use cofi_session::Session;

/// A name that a person gave, and what the functions that have it are shown as.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    name: String,
    /// Names that are shown of functions that have this one, too: `_IO_puts` for `puts`.
    shown: Vec<String>,
}

impl Wanted {
    pub(crate) fn of(name: &str, session: &Session<'_>) -> Self {
        let mut shown: Vec<String> = Vec::new();
        session.for_each_other_name(|other, better, _| {
            if is_named(&cofi_image::demangle(other), name) {
                let better = cofi_image::demangle(better);
                if !is_named(&better, name) && !shown.contains(&better) {
                    shown.push(better);
                }
            }
        });
        let name = name.to_owned();
        Self { name, shown }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether a function of this name, demangled, is meant.
    pub(crate) fn is(&self, function: &str) -> bool {
        is_named(function, &self.name) || self.shown.iter().any(|shown| shown == function)
    }

    /// Says on standard error what the function is called where it is shown, if that is not the name that was given.
    pub(crate) fn tell_other_names(&self) {
        if !self.shown.is_empty() {
            let (name, shown) = (&self.name, self.shown.join(", "));
            tell(format_args!(
                "{name} is another name of what is shown as {shown}"
            ));
        }
    }
}

/// Whether a person may mean a function of this name, demangled: arguments and the version of a symbol may be left out.
pub(crate) fn is_named(function: &str, name: &str) -> bool {
    function.strip_prefix(name).is_some_and(|rest| {
        rest.is_empty() || rest.starts_with('(') || rest.starts_with('@') && rest != "@plt"
    })
}

/// Whether a person may mean a function by its symbol, as a file has it.
pub(crate) fn symbol_is(symbol: &str, name: &str) -> bool {
    // To demangle all symbols of a large program takes a second: those with another last word need not be.
    let word = name.rsplit("::").next().unwrap_or(name);
    let word = word.split(['(', '<', '@']).next().unwrap_or(word);
    symbol.contains(word) && is_named(&cofi_image::demangle(symbol), name)
}

/// The function to which a stub of a procedure linkage table leads, by the stub's name.
pub(crate) fn of_stub(name: &str) -> Option<&str> {
    name.strip_suffix("@plt")
}

#[cfg(test)]
mod tests {
    use super::is_named;

    #[test]
    fn arguments_and_versions_may_be_left_out() {
        assert!(is_named("main", "main"));
        assert!(is_named("a::b(int)", "a::b"));
        assert!(!is_named("a::bc(int)", "a::b"));
        assert!(!is_named("mainly", "main"));
        assert!(is_named("pthread_create@@GLIBC_2.34", "pthread_create"));
        assert!(!is_named("puts@plt", "puts"));
        assert!(is_named("puts@plt", "puts@plt"));
    }
}
