//! What the conditions of a query say of single columns, so that what they exclude is not decoded.
//!
//! Only what makes a part certain to hold no row is used; DataFusion applies each condition to every row all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use datafusion::common::ScalarValue;
use datafusion::logical_expr::{Expr, Operator};

/// What is said of columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// From which number to which. The least above the most: nothing fits.
    numbers: BTreeMap<String, (i128, i128)>,
    /// Which texts.
    texts: BTreeMap<String, BTreeSet<String>>,
}

/// Any number that a column may hold.
const ALL: (i128, i128) = (i64::MIN as i128, u64::MAX as i128);

/// The column of an expression, under conversions between kinds of numbers, which change no value of it.
fn column_of(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Column(column) => Some(&column.name),
        Expr::Cast(cast) if cast.field.data_type().is_numeric() => column_of(&cast.expr),
        Expr::TryCast(cast) if cast.field.data_type().is_numeric() => column_of(&cast.expr),
        _ => None,
    }
}

/// A whole number, of any kind that the optimiser makes of one.
fn number_of(expr: &Expr) -> Option<i128> {
    let Expr::Literal(value, _) = expr else {
        return None;
    };
    Some(match value {
        ScalarValue::Int8(Some(number)) => (*number).into(),
        ScalarValue::Int16(Some(number)) => (*number).into(),
        ScalarValue::Int32(Some(number)) => (*number).into(),
        ScalarValue::Int64(Some(number)) => (*number).into(),
        ScalarValue::UInt8(Some(number)) => (*number).into(),
        ScalarValue::UInt16(Some(number)) => (*number).into(),
        ScalarValue::UInt32(Some(number)) => (*number).into(),
        ScalarValue::UInt64(Some(number)) => (*number).into(),
        ScalarValue::Decimal128(Some(number), _, 0) => *number,
        _ => return None,
    })
}

fn text_of(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Literal(value, _) => value.try_as_str().flatten(),
        _ => None,
    }
}

impl Limits {
    /// What conditions say that all hold.
    #[must_use]
    pub fn of(conditions: &[Expr]) -> Self {
        let mut limits = Self::default();
        for condition in conditions {
            limits.add(condition);
        }
        limits
    }

    /// Whether a condition says anything that can be used.
    #[must_use]
    pub fn understands(condition: &Expr) -> bool {
        let mut limits = Self::default();
        limits.add(condition);
        limits != Self::default()
    }

    fn add(&mut self, condition: &Expr) {
        match condition {
            Expr::BinaryExpr(both) if both.op == Operator::And => {
                self.add(&both.left);
                self.add(&both.right);
            }
            Expr::BinaryExpr(both) => {
                if let Some(column) = column_of(&both.left) {
                    self.compare(column, both.op, &both.right);
                } else if let (Some(column), Some(op)) = (column_of(&both.right), both.op.swap()) {
                    self.compare(column, op, &both.left);
                }
            }
            Expr::Between(between) if !between.negated => {
                if let Some(column) = column_of(&between.expr) {
                    self.compare(column, Operator::GtEq, &between.low);
                    self.compare(column, Operator::LtEq, &between.high);
                }
            }
            Expr::InList(list) if !list.negated => {
                let Some(column) = column_of(&list.expr) else {
                    return;
                };
                let texts: Option<BTreeSet<&str>> = list.list.iter().map(text_of).collect();
                let numbers: Option<BTreeSet<i128>> = list.list.iter().map(number_of).collect();
                if let Some(texts) = texts {
                    self.only(column, texts);
                } else if let Some(numbers) = numbers
                    && let (Some(least), Some(most)) = (numbers.first(), numbers.last())
                {
                    self.within(column, *least, *most);
                }
            }
            _ => {}
        }
    }

    fn compare(&mut self, column: &str, op: Operator, value: &Expr) {
        if let (Some(text), Operator::Eq) = (text_of(value), op) {
            self.only(column, [text].into());
        }
        let Some(number) = number_of(value) else {
            return;
        };
        match op {
            Operator::Eq => self.within(column, number, number),
            Operator::Lt => self.within(column, ALL.0, number - 1),
            Operator::LtEq => self.within(column, ALL.0, number),
            Operator::Gt => self.within(column, number + 1, ALL.1),
            Operator::GtEq => self.within(column, number, ALL.1),
            _ => {}
        }
    }

    fn within(&mut self, column: &str, least: i128, most: i128) {
        let known = self.numbers.entry(column.to_owned()).or_insert(ALL);
        *known = (known.0.max(least), known.1.min(most));
    }

    fn only(&mut self, column: &str, texts: BTreeSet<&str>) {
        match self.texts.get_mut(column) {
            Some(known) => known.retain(|text| texts.contains(text.as_str())),
            None => {
                let texts = texts.into_iter().map(str::to_owned).collect();
                self.texts.insert(column.to_owned(), texts);
            }
        }
    }

    /// Whether a row may have this text in a column.
    #[must_use]
    pub fn allows_text(&self, column: &str, text: &str) -> bool {
        self.texts
            .get(column)
            .is_none_or(|known| known.contains(text))
    }

    /// Whether a row may have this number in a column. Of NULL no comparison is true.
    #[must_use]
    pub fn allows_number(&self, column: &str, number: Option<u64>) -> bool {
        self.range(column)
            .is_none_or(|range| number.is_some_and(|number| range.contains(&number.into())))
    }

    /// Whether anything is said of a column.
    #[must_use]
    pub fn is_about(&self, column: &str) -> bool {
        self.numbers.contains_key(column) || self.texts.contains_key(column)
    }

    /// From which number to which a column may be; none if nothing says.
    #[must_use]
    pub fn range(&self, column: &str) -> Option<RangeInclusive<i128>> {
        self.numbers.get(column).map(|(least, most)| *least..=*most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::datatypes::DataType;
    use datafusion::logical_expr::{cast, col, lit};

    #[test]
    fn comparisons_narrow_a_column() {
        let conditions = [
            col("ip").gt_eq(lit(10_u64)).and(col("ip").lt(lit(20_u64))),
            lit(12_i64).lt(col("ip")),
            col("tid").in_list(vec![lit(7), lit(3)], false),
            col("time_ns").between(lit(5), lit(6)),
            cast(col("stream_offset"), DataType::UInt64).eq(lit(4)),
            col("recording").eq(lit("a.data")),
        ];
        let limits = Limits::of(&conditions);
        assert_eq!(limits.range("ip"), Some(13..=19));
        assert_eq!(limits.range("tid"), Some(3..=7));
        assert_eq!(limits.range("time_ns"), Some(5..=6));
        assert_eq!(limits.range("stream_offset"), Some(4..=4));
        assert_eq!(limits.range("tsc"), None);
        assert!(limits.allows_number("ip", Some(13)) && !limits.allows_number("ip", Some(20)));
        assert!(!limits.allows_number("ip", None) && limits.allows_number("tsc", None));
        assert!(limits.allows_text("recording", "a.data"));
        assert!(!limits.allows_text("recording", "b.data"));
        assert!(conditions.iter().all(Limits::understands));
    }

    /// What may be true of any row narrows nothing.
    #[test]
    fn other_conditions_say_nothing() {
        for condition in [
            col("ip").eq(lit(1)).or(col("tid").eq(lit(2))),
            col("ip").not_eq(lit(1)),
            col("ip").not_between(lit(1), lit(2)),
            col("tid").in_list(vec![lit(7)], true),
            col("name").like(lit("a%")),
            (col("ip") + lit(1)).eq(lit(2)),
            col("ip").is_null(),
        ] {
            assert!(!Limits::understands(&condition), "{condition}");
        }
    }

    #[test]
    fn what_contradicts_itself_allows_nothing() {
        let limits = Limits::of(&[col("ip").lt(lit(5)), col("ip").gt(lit(5))]);
        assert!(!limits.allows_number("ip", Some(5)) && !limits.allows_number("ip", Some(4)));
        let limits = Limits::of(&[col("file").eq(lit("a")), col("file").eq(lit("b"))]);
        assert!(!limits.allows_text("file", "a") && !limits.allows_text("file", "b"));
    }
}
