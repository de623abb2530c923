//! What something in flight waits for, as text for those who look on: notices, and tools.
//!
//! Whoever runs operations knows whom they wait for, and is asked only when a wait has lasted long. So a work carries
//! no text but a handle to who knows, and a number ([`Awaited`]): nothing is allocated for it.

use super::{Completer, Work, pair};
use crate::sync::Mutex;
use crate::{Error, ErrorKind};
use std::sync::{Arc, Weak};

/// Which of the things that a [`Describe`] knows of: two numbers that mean something to it alone.
pub type Which = [u64; 2];

/// Knows what things in flight wait for. Called with no lock held, on any thread.
pub trait Describe: Send + Sync {
    /// What is known here, at once; `None` of what has ended.
    fn describe(&self, which: Which) -> Option<Account>;

    /// Asks those who know better whom it waits for, for [`Account::whom`]. Does not block; `None` if nobody else
    /// knows.
    fn ask(&self, which: Which) -> Option<Work<String>> {
        let _ = which;
        None
    }

    /// Ends it, as [`Work::cancel`] wants it: of works that were made [to be ended here](super::governed).
    fn cancel(&self, which: Which) {
        let _ = which;
    }
}

/// What is said of something in flight: "`what` has been waiting for `whom`".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The operation, with its group, number and the like; the operation's name alone if `None`.
    pub what: Option<String>,
    /// Who has not done what; the peer of its link if `None`.
    pub whom: Option<String>,
}

/// Who knows what a work waits for.
#[derive(Clone)]
pub struct Awaited {
    knows: Weak<dyn Describe>,
    which: Which,
}

impl Awaited {
    /// `which` of those that `knows` knows.
    #[must_use]
    pub fn new(knows: Weak<dyn Describe>, which: Which) -> Self {
        Self { knows, which }
    }

    /// What is known here. Makes the text now.
    #[must_use]
    pub fn describe(&self) -> Option<Account> {
        self.knows.upgrade()?.describe(self.which)
    }

    /// Asks those who know better, see [`Describe::ask`].
    #[must_use]
    pub fn ask(&self) -> Option<Work<String>> {
        self.knows.upgrade()?.ask(self.which)
    }

    /// Ends it there, if that is still there.
    pub(super) fn cancel(&self) {
        if let Some(knows) = self.knows.upgrade() {
            knows.cancel(self.which);
        }
    }
}

impl std::fmt::Debug for Awaited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Awaited").field("which", &self.which).finish_non_exhaustive()
    }
}

struct Join {
    state: Mutex<Joining>,
}

struct Joining {
    left: usize,
    texts: Vec<String>,
    completer: Option<Completer<String>>,
}

impl Join {
    fn one_ended(&self, answer: Option<(usize, String)>) {
        let ended = {
            let mut joining = self.state.lock();
            if let Some((at, text)) = answer {
                joining.texts[at] = text;
            }
            joining.left -= 1;
            if joining.left > 0 { None } else { joining.completer.take().zip(Some(std::mem::take(&mut joining.texts))) }
        };
        let Some((completer, texts)) = ended else { return };
        completer.complete(match texts.is_empty() {
            true => Err(Error::new(ErrorKind::NotFound, "nobody was asked")),
            false => Ok(listed(texts)),
        });
    }
}

/// Texts, each once, in a row.
#[must_use]
pub fn listed(texts: impl IntoIterator<Item = String>) -> String {
    let mut seen: Vec<String> = Vec::new();
    for text in texts {
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    seen.join(", ")
}

/// All that is answered to several questions, in their order, each text once: of each what is known without an answer,
/// and the question. Ends when all have ended.
#[must_use]
pub fn joined(questions: Vec<(String, Option<Work<String>>)>) -> Work<String> {
    let (completer, work) = pair("asking");
    let (texts, questions): (Vec<_>, Vec<_>) = questions.into_iter().unzip();
    // One more than there are questions, so that none of them ends it before all are in.
    let state = Joining { left: questions.len() + 1, texts, completer: Some(completer) };
    let join = Arc::new(Join { state: Mutex::new(state) });
    for (at, question) in questions.into_iter().enumerate() {
        let Some(question) = question else {
            join.one_ended(None);
            continue;
        };
        let join = Arc::clone(&join);
        question.on_complete(move |answer| join.one_ended(answer.as_ref().ok().map(|text| (at, text.clone()))));
    }
    join.one_ended(None);
    work
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Knows;

    impl Describe for Knows {
        fn describe(&self, [sort, number]: Which) -> Option<Account> {
            (sort == 1).then(|| Account { what: Some(format!("sum {number}")), whom: None })
        }
    }

    #[test]
    fn a_work_says_what_it_waits_for_while_somebody_knows() {
        let knows: Arc<dyn Describe> = Arc::new(Knows);
        let (completer, work) = pair::<u8>("sum");
        assert!(work.awaited().is_none());
        completer.awaits(Awaited::new(Arc::downgrade(&knows), [1, 7]));
        let awaited = work.awaited().expect("it was said");
        assert_eq!(awaited.describe(), Some(Account { what: Some("sum 7".to_owned()), whom: None }));
        assert!(awaited.ask().is_none());
        drop(knows);
        assert_eq!(awaited.describe(), None);
        completer.complete(Ok(1));
        assert!(work.awaited().is_none(), "it waits for nothing any more");
    }

    /// Who knows what it waits for ends it, once; also when somebody else has come to know it better meanwhile.
    #[test]
    fn a_work_is_ended_by_who_knew_it_from_the_start() {
        #[derive(Default)]
        struct Ends(crate::sync::Mutex<Vec<Which>>);
        impl Describe for Ends {
            fn describe(&self, _: Which) -> Option<Account> {
                None
            }
            fn cancel(&self, which: Which) {
                self.0.lock().push(which);
            }
        }
        let ends = Arc::new(Ends::default());
        let knows: Weak<Ends> = Arc::downgrade(&ends);
        let knows: Weak<dyn Describe> = knows;
        let (_first, work) = super::super::governed::<u8>("sum", None, None, Awaited::new(knows.clone(), [1, 1]));
        work.cancel();
        work.cancel();
        assert_eq!(*ends.0.lock(), [[1, 1]]);
        let (second, work) = super::super::governed::<u8>("sum", None, None, Awaited::new(knows.clone(), [1, 2]));
        second.awaits(Awaited::new(knows.clone(), [7, 7]));
        work.cancel();
        assert_eq!(*ends.0.lock(), [[1, 1], [1, 2]]);
        let (third, work) = super::super::governed::<u8>("sum", None, None, Awaited::new(knows, [1, 3]));
        third.complete(Ok(1));
        work.cancel();
        assert_eq!(ends.0.lock().len(), 2, "what is done is not ended");
    }

    #[test]
    fn answers_are_joined_in_the_order_of_the_questions() {
        let (questions, works): (Vec<_>, Vec<_>) = (0..4).map(|_| pair::<String>("asking")).unzip();
        let asked = works.into_iter().enumerate().map(|(at, work)| (format!("node {at}"), Some(work)));
        let all = joined(asked.chain([("node 4".to_owned(), None)]).collect());
        let gone = Error::new(ErrorKind::Closed, "gone");
        let answers = [Ok("one".to_owned()), Err(gone), Ok("two".to_owned()), Ok("one".to_owned())];
        for (question, answer) in questions.into_iter().zip(answers).rev() {
            assert!(!all.is_done());
            question.complete(answer);
        }
        assert_eq!(all.wait().expect("some were asked"), "one, node 1, two, node 4");
        assert!(joined(Vec::new()).wait().is_err());
    }
}
