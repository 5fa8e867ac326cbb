// What ranks that share out the rows of blocks decide alike: they run the same blocks at the same
// time, and exchange inside of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "memory/recompute.h"

namespace atelier::memory {

// All ranks of SequenceScope::current() come here together. Where there is none, what this one says
// is the answer.

// The least and the most of each of these numbers.
std::vector<double> least_of_ranks(const std::vector<double>& mine);
std::vector<double> most_of_ranks(const std::vector<double>& mine);

// Makes the costs of each block the same on all ranks: those of the rank that has the highest.
// Values are unread where no rank reads them.
void agree_on(const std::vector<std::shared_ptr<BlockCosts>>& costs);

// The rows that every rank has of the samples of a block with `inputs`; empty where they are not
// shared out. Ranks have other numbers of rows, of which some are equal on one rank and differ on
// another; these are the same on all of them.
std::string rows_of_ranks(const Tensors& inputs);

}  // namespace atelier::memory
