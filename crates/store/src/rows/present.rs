//! Which rows of a table may be other than zero.
//!
//! Without an updater a merged gradient takes the place of the value: rows that nobody pushed are absent, which is
//! zero. To write only what changes, a table remembers the rows that it has.

use super::table::{AHEAD, RowSlices, Table};
use sheave_base::Result;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Present {
    /// Any row: after a dense value, or another updater.
    All,
    /// Those with these ascending ids.
    Some(Vec<i64>),
}

impl Present {
    /// Makes a table these normal rows and zeros, whatever it was. Costs as much as the rows that it had and gets.
    ///
    /// # Errors
    ///
    /// `Internal` for rows that the table does not have. Then any row may be other than zero.
    pub(crate) fn assign(&mut self, table: &mut Table<'_>, rows: RowSlices<'_>) -> Result<()> {
        let known = std::mem::replace(self, Self::All);
        let mut ids = match known {
            Self::All => {
                table.clear_all();
                Vec::new()
            }
            Self::Some(ids) => {
                clear_others(table, &ids, rows.ids)?;
                ids
            }
        };
        table.assign(rows)?;
        ids.clear();
        ids.extend_from_slice(rows.ids);
        *self = Self::Some(ids);
        Ok(())
    }
}

/// Clears the rows of `known` that are not in `kept`; both ascend.
fn clear_others(table: &mut Table<'_>, known: &[i64], kept: &[i64]) -> Result<()> {
    let mut kept = kept.iter().peekable();
    for (index, id) in known.iter().enumerate() {
        table.announce(known.get(index + AHEAD));
        while kept.next_if(|next| *next < id).is_some() {}
        if kept.peek() != Some(&id) {
            table.clear(*id)?;
        }
    }
    Ok(())
}
