//! Images at high resolution in a batch: reflectance, or digital numbers as they are stored.

use crate::Scene;

/// What digital numbers stand for: reflectance `(number + offset) * scale`, in single precision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coding {
    /// Added to the number.
    pub offset: f32,
    /// Reflectance of one.
    pub scale: f32,
    /// The number that stands for "no data", instead of for a reflectance.
    pub missing: u16,
}

impl Coding {
    /// The reflectance of a number; NaN where it is missing.
    pub fn reflectance(&self, number: u16) -> f32 {
        match number == self.missing {
            true => f32::NAN,
            false => (f32::from(number) + self.offset) * self.scale,
        }
    }
}

/// Images at high resolution, as they are stored.
#[derive(Clone, Debug, PartialEq)]
pub enum TargetImages {
    /// Reflectance; NaN is missing.
    Reflectance(Vec<f32>),
    /// Digital numbers, and what they stand for.
    Numbers(Vec<u16>, Coding),
}

impl TargetImages {
    /// Room for so many values; numbers where there is a coding for them.
    pub(crate) fn with_capacity(values: usize, coding: Option<Coding>) -> Self {
        match coding {
            Some(coding) => Self::Numbers(Vec::with_capacity(values), coding),
            None => Self::Reflectance(Vec::with_capacity(values)),
        }
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Reflectance(values) => values.len(),
            Self::Numbers(numbers, _) => numbers.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reflectance of each value; NaN is missing.
    pub fn reflectance(&self) -> Vec<f32> {
        match self {
            Self::Reflectance(values) => values.clone(),
            Self::Numbers(numbers, coding) => {
                let reflectance = |number: &u16| coding.reflectance(*number);
                numbers.iter().map(reflectance).collect()
            }
        }
    }
}

/// The digital numbers of high-resolution images.
#[derive(Debug)]
pub(crate) struct Numbers {
    offset: f32,
    scale: f32,
    /// A bit for each number: whether an image has it.
    occurring: Box<[u64; 1 << 10]>,
}

impl Numbers {
    /// Of no image yet; none for scenes whose images are no numbers, or mean different things.
    pub(crate) fn of<'a>(mut scenes: impl Iterator<Item = &'a Scene>) -> Option<Self> {
        let first = scenes.next()?.target_numbers()?;
        let alike = scenes.all(|scene| scene.target_numbers() == Some(first));
        alike.then(|| Self::meaning(first.offset, first.scale))
    }

    fn meaning(offset: f32, scale: f32) -> Self {
        Self {
            offset,
            scale,
            occurring: Box::new([0; 1 << 10]),
        }
    }

    /// Notes a number that an image has.
    pub(crate) fn add(&mut self, number: u16) {
        self.occurring[usize::from(number >> 6)] |= 1 << (number & 63);
    }

    /// What they mean: the largest number that no image has stands for what is missing; none where there is no such.
    pub(crate) fn coding(&self) -> Option<Coding> {
        let has = |number: u16| self.occurring[usize::from(number >> 6)] >> (number & 63) & 1 == 1;
        let mut numbers = (0..=u16::MAX).rev();
        numbers.find(|number| !has(*number)).map(|missing| Coding {
            offset: self.offset,
            scale: self.scale,
            missing,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_number_is_found_where_there_is_one() {
        let mut numbers = Numbers::meaning(-1000.0, 1e-4);
        let free = |numbers: &Numbers| numbers.coding().map(|coding| coding.missing);
        assert_eq!(free(&numbers), Some(u16::MAX));
        [65_535, 65_534, 65_532, 0]
            .into_iter()
            .for_each(|number| numbers.add(number));
        assert_eq!(free(&numbers), Some(65_533));
        (1..=u16::MAX).for_each(|number| numbers.add(number));
        assert_eq!(free(&numbers), None);
    }
}
