//! Where another executor may come in between: before each operation that others can see.
//!
//! In the executor this is nothing. In this crate's own tests a scheduler may stand behind it, which tries every
//! order in which the operations of several executors can happen.

/// An operation that others can see comes next.
#[cfg(not(test))]
#[inline(always)]
pub fn step() {}

/// Nothing can be done before another executor has done something.
#[cfg(not(test))]
pub fn wait() {
    std::thread::sleep(std::time::Duration::from_millis(5));
}

/// A lock is about to be let go.
#[cfg(not(test))]
#[inline(always)]
pub fn let_go() {}

#[cfg(test)]
pub use scheduled::{let_go, step, wait};

#[cfg(test)]
pub mod scheduled {
    //! An exhaustive, depth-first scheduler: one thread moves at a time, from one step to the next.

    use std::cell::{Cell, RefCell};
    use std::sync::mpsc::{Receiver, Sender, channel};

    #[derive(Clone, Copy)]
    enum Word {
        Stepped,
        Waits,
        Done,
    }

    /// Who says it, what, and whether it has let go of a lock since it last said something.
    type Message = (usize, Word, bool);

    struct Seat {
        number: usize,
        to_scheduler: Sender<Message>,
        go: Receiver<()>,
    }

    thread_local! {
        static SEAT: RefCell<Option<Seat>> = const { RefCell::new(None) };
        static LET_GO: Cell<bool> = const { Cell::new(false) };
    }

    /// See the executor's own.
    pub fn step() {
        say(Word::Stepped);
    }

    /// See the executor's own.
    pub fn wait() {
        if !say(Word::Waits) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// See the executor's own.
    pub fn let_go() {
        LET_GO.set(true);
    }

    fn say(word: Word) -> bool {
        SEAT.with_borrow(|seat| {
            let Some(seat) = seat else {
                return false;
            };
            let message = (seat.number, word, LET_GO.replace(false));
            let scheduler_lives = seat.to_scheduler.send(message).is_ok();
            scheduler_lives && seat.go.recv().is_ok()
        })
    }

    /// Runs the actors of one world after another, until every order of their steps has been tried, or `limit`
    /// orders have. Gives how many were tried, and whether those were all.
    pub fn explore<A>(limit: usize, mut world: impl FnMut() -> World<A>) -> (usize, bool)
    where
        A: Send + 'static,
    {
        // The choice made at each point, and how many there were.
        let mut path: Vec<(usize, usize)> = Vec::new();
        for tried in 1..=limit {
            let World { actors, check } = world();
            check(run(actors, &mut path));
            // The next order: the last choice that has another way.
            while path
                .last()
                .is_some_and(|(choice, ways)| choice + 1 == *ways)
            {
                path.pop();
            }
            match path.last_mut() {
                Some((choice, _)) => *choice += 1,
                None => return (tried, true),
            }
        }
        (limit, false)
    }

    /// Actors, and what must hold of what they give, in the order in which they ended.
    pub struct World<A> {
        pub actors: Vec<Box<dyn FnOnce() -> A + Send>>,
        pub check: Box<dyn FnOnce(Vec<A>)>,
    }

    /// Says so when an actor ends, also by a panic.
    struct End(Sender<Message>, usize);

    impl Drop for End {
        fn drop(&mut self) {
            let _nobody = self.0.send((self.1, Word::Done, true));
        }
    }

    fn run<A: Send + 'static>(
        actors: Vec<Box<dyn FnOnce() -> A + Send>>,
        path: &mut Vec<(usize, usize)>,
    ) -> Vec<A> {
        let (to_scheduler, words) = channel();
        let mut go = Vec::new();
        let mut threads = Vec::new();
        for (number, actor) in actors.into_iter().enumerate() {
            let (start, go_receiver) = channel();
            let seat = Seat {
                number,
                to_scheduler: to_scheduler.clone(),
                go: go_receiver,
            };
            let done = to_scheduler.clone();
            go.push(start);
            threads.push(Some(std::thread::spawn(move || {
                seat.go.recv().expect("the scheduler lives");
                SEAT.set(Some(seat));
                let _end = End(done, number);
                let given = actor();
                SEAT.set(None);
                given
            })));
        }
        let mut ready: Vec<usize> = (0..threads.len()).collect();
        let mut waiting: Vec<usize> = Vec::new();
        let mut given = Vec::new();
        let mut depth = 0;
        while !ready.is_empty() {
            if path.len() == depth {
                path.push((0, ready.len()));
            }
            assert_eq!(
                path[depth].1,
                ready.len(),
                "an order cannot be played again"
            );
            let number = ready.remove(path[depth].0);
            depth += 1;
            go[number].send(()).expect("the actor lives");
            let (number, word, let_go) = words.recv().expect("an actor lives");
            // Whoever waits for a lock looks again once one was let go.
            if let_go {
                ready.append(&mut waiting);
            }
            match word {
                Word::Waits => waiting.push(number),
                Word::Stepped => ready.push(number),
                Word::Done => {
                    let thread = threads[number].take().expect("ends once");
                    given.push(thread.join().expect("an actor panicked"));
                }
            }
            ready.sort_unstable();
        }
        assert!(waiting.is_empty(), "deadlock");
        given
    }
}
