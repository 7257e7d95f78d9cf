#pragma once
// The state of a trainer by name, for tests that check single tensors.

#include <string>

#include "trireme/checkpoint/shard.h"
#include "trireme/train/step/trainer.h"

namespace trireme::test {

/// The shards of Trainer::state() whose names begin with `prefix`, which is removed. They share memory with
/// the state.
inline checkpoint::Shards state_under(train::Trainer& trainer, const std::string& prefix) {
  checkpoint::Shards found;
  for (checkpoint::Shard shard : train::shards_of(trainer.state())) {
    if (!shard.name.starts_with(prefix)) continue;
    shard.name = shard.name.substr(prefix.size());
    found.push_back(std::move(shard));
  }
  return found;
}

}  // namespace trireme::test
