//! Gradients on their way from backward to the update, and the update: what a rank holds for them.

use std::collections::VecDeque;
use std::rc::Rc;

use terrashard_layout::{Bucket, ElementType, Offload, Residence, ShardTable, Stage, StateConfig};

use super::ledger::{Blank, Kind, Ledger};
use super::machine::Machine;

/// Gathers of updated parameters that travel at once, with the one that waits for room.
const GATHERS: usize = 3;

/// Buckets that a host has read before the one that is updated, with that one.
const AHEAD: usize = 3;

/// A quarter of the model's gradients travels at once, or a single bucket.
const MODEL_SHARE: u64 = 4;

/// What becomes of gradients on one rank.
pub(super) struct Reduction {
    ledger: Ledger,
    table: Rc<ShardTable>,
    states: Rc<StateConfig>,
    bucket_of: Vec<Option<usize>>,
    arrived: Vec<Option<Blank>>,
    missing: Vec<usize>,
    next: usize,
    in_flight: VecDeque<(usize, [Blank; 2])>,
    /// Bytes of all buckets' buffers.
    all: u64,
    /// For each bucket.
    gradients: Vec<Option<Blank>>,
}

impl Reduction {
    /// At the beginning of a step's last micro-batch: those before it have left their sums.
    pub(super) fn new(ledger: Ledger, table: Rc<ShardTable>, states: Rc<StateConfig>) -> Self {
        let mut bucket_of = vec![None; table.rows().len()];
        for (index, bucket) in table.buckets().iter().enumerate() {
            for piece in &bucket.pieces {
                bucket_of[piece.row] = Some(index);
            }
        }
        let mut reduction = Self {
            bucket_of,
            arrived: vec![None; table.rows().len()],
            missing: table.buckets().iter().map(|it| it.pieces.len()).collect(),
            next: 0,
            in_flight: VecDeque::new(),
            all: 0,
            gradients: vec![None; table.buckets().len()],
            ledger,
            table,
            states,
        };
        let buffers = reduction.table.buckets().iter();
        reduction.all = buffers.map(|it| reduction.flat(it)).sum();
        if reduction.states.accumulate > 1 {
            for index in 0..reduction.gradients.len() {
                let bytes = reduction.held(&reduction.table.buckets()[index]);
                reduction.gradients[index] = Some(reduction.ledger.hold(Kind::Gradients, bytes));
            }
        }
        reduction
    }

    /// The rows under these names.
    fn rows(&self, names: &[String]) -> Vec<usize> {
        let rows = self.table.rows();
        let all = names.iter().flat_map(move |name| {
            let begins = |row: usize| {
                let own = rows[row].parameter.name.strip_prefix(name.as_str());
                own.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            // Names are sorted, so those that begin alike stand together, with few others between them.
            let first = rows.partition_point(|row| row.parameter.name.as_str() < name.as_str());
            let near = move |row: &usize| rows[*row].parameter.name.starts_with(name.as_str());
            (first..rows.len())
                .take_while(near)
                .filter(move |row| begins(*row))
        });
        all.collect()
    }

    pub(super) fn elements(&self, names: &[String]) -> u64 {
        let rows = self.rows(names).into_iter();
        rows.map(|row| self.table.rows()[row].numel() as u64).sum()
    }

    /// Gradients of the parameters under these names arrive together.
    pub(super) fn deliver(&mut self, names: &[String], gradient: impl Fn(u64) -> Blank) {
        for row in self.rows(names) {
            if let Some(bucket) = self.bucket_of[row] {
                let elements = self.table.rows()[row].numel() as u64;
                self.arrived[row] = Some(gradient(elements).becomes(Kind::Gradients));
                self.missing[bucket] -= 1;
            }
        }
        while self.next < self.missing.len() && self.missing[self.next] == 0 {
            self.launch(self.next);
            self.next += 1;
        }
    }

    fn launch(&mut self, index: usize) {
        let table = self.table.clone();
        let bucket = &table.buckets()[index];
        let flat = bucket.flat_len(table.ranks()) as u64;
        let bytes = flat * self.states.reduce.of(bucket.dtype).bytes() as u64;
        let buffer = self.ledger.hold(Kind::Buckets, bytes);
        for piece in &bucket.pieces {
            self.arrived[piece.row] = None;
        }
        self.make_room(bytes);
        // One rank has nobody to send to: its buffer is the result.
        let result = match table.ranks() {
            1 => buffer.clone(),
            _ => {
                let whole = table.stage() == Stage::Zero;
                let part = if whole {
                    bytes
                } else {
                    bytes / table.ranks() as u64
                };
                self.ledger.hold(Kind::Buckets, part)
            }
        };
        self.in_flight.push_back((index, [buffer, result]));
        self.drain(self.limit());
    }

    fn limit(&self) -> usize {
        match self.states.overlap {
            true => terrashard_layout::BUCKETS_IN_FLIGHT,
            false => 0,
        }
    }

    fn make_room(&mut self, bytes: u64) {
        let travelling = |reduction: &Self| -> u64 {
            let buffers = reduction.in_flight.iter();
            buffers.map(|(_, [buffer, _])| buffer.bytes()).sum()
        };
        while !self.in_flight.is_empty()
            && (self.in_flight.len() >= self.limit()
                || travelling(self) + bytes > self.all / MODEL_SHARE)
        {
            self.drain(self.in_flight.len() - 1);
        }
    }

    fn flat(&self, bucket: &Bucket) -> u64 {
        let element = self.states.reduce.of(bucket.dtype).bytes();
        (bucket.flat_len(self.table.ranks()) * element) as u64
    }

    fn drain(&mut self, limit: usize) {
        while self.in_flight.len() > limit {
            let Some((index, [buffer, result])) = self.in_flight.pop_front() else {
                return;
            };
            drop(buffer);
            let held = self.held(&self.table.buckets()[index]);
            // What arrives is of the type in which it is held, unless micro-batches add up in a wider one.
            let result = match result.bytes() == held {
                true => result.becomes(Kind::Gradients),
                false => self.ledger.hold(Kind::Gradients, held),
            };
            self.gradients[index] = Some(result);
        }
    }

    /// Bytes of a bucket's reduced gradient.
    fn held(&self, bucket: &Bucket) -> u64 {
        let elements = match self.table.stage() {
            Stage::Zero => bucket.flat_len(self.table.ranks()),
            Stage::One | Stage::Two | Stage::Three => bucket.chunk,
        };
        (elements * self.states.gradient(bucket.dtype).bytes()) as u64
    }
}

/// The end of a step: all gradients are there, and bucket by bucket the states change.
pub(super) fn update(machine: &Machine) {
    let mut reduction = machine.reduction.borrow_mut();
    reduction.arrived.fill(None);
    reduction.drain(0);
    let (table, states) = (reduction.table.clone(), reduction.states.clone());
    let mut ahead: VecDeque<Blank> = VecDeque::new();
    let mut travelling: VecDeque<Blank> = VecDeque::new();
    for (index, bucket) in table.buckets().iter().enumerate() {
        let gradient = reduction.gradients[index].take();
        let elements = match table.stage() {
            Stage::Zero => bucket.flat_len(table.ranks()),
            Stage::One | Stage::Two | Stage::Three => bucket.chunk,
        } as u64;
        let own = |bytes: u64| machine.bytes(elements * bytes).becomes(Kind::Buckets);
        // A host reads buckets ahead of the one that is updated, and puts the one before back: each is a copy of the parameters.
        if !machine.is_gpu() {
            ahead.push_back(own(bucket.dtype.bytes() as u64));
            if ahead.len() > AHEAD {
                ahead.pop_front();
            }
        }
        // On GPUs states change in place, and on burn's own backend; elsewhere moments and direction of a bucket are made anew.
        if !machine.is_gpu() && !machine.is_flex() {
            drop(own(5 * master_bytes(bucket.dtype)));
        }
        // An offloaded gradient is on its way to the host.
        let _gradient = gradient.filter(|_| states.offload == Offload::None || !machine.is_gpu());
        if bucket.residence == Residence::Shard {
            continue;
        }
        let copy = own(bucket.dtype.bytes() as u64);
        if table.stage() != Stage::Zero && table.ranks() > 1 {
            let whole = (bucket.flat_len(table.ranks()) * bucket.dtype.bytes()) as u64;
            travelling.push_back(machine.bytes(whole).becomes(Kind::Buckets));
            if travelling.len() >= GATHERS {
                travelling.pop_front();
            }
        }
        drop(copy);
    }
}

fn master_bytes(dtype: ElementType) -> u64 {
    dtype.state().bytes() as u64
}
