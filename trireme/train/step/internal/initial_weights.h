#pragma once
// Initial weights from a file, for a model whose layers have no memory yet. Each rank reads the parts that it
// computes with, piece by piece. So neither the file nor the model has to fit into a rank.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "trireme/checkpoint/shard_reader.h"
#include "trireme/comm/context.h"
#include "trireme/model/model.h"

namespace trireme::train {

class InitialWeights {
 public:
  /// Null where it cannot be read so: these are no safetensors files, or ranks do not all see the same ones.
  /// Throws DataError on all ranks: its tensors are not those of `whole`, a model without memory. Collective.
  static std::shared_ptr<const InitialWeights> open(const std::string& path, comm::Context& context,
                                                    const model::Model& whole);

  /// Gives layers of `model`, which have memory, the file's values; of split parameters, their parts' values.
  void fill(const std::vector<model::Layer>& layers, const model::Model& model) const;

 private:
  InitialWeights(const std::string& path, const std::vector<std::filesystem::path>& files);
  /// Throws DataError. Copies under a second name are left out.
  void check(const model::Model& whole, const Log& log) const;

  const std::string path_;
  mutable checkpoint::ShardReader reader_;  ///< while a model is set up, by one thread
};

}  // namespace trireme::train
