#include "trireme/parallel/data/sparse_embeddings.h"

#include <torch/nn/modules/embedding.h>

#include "trireme/base/error.h"

namespace trireme::parallel {

void reject_sparse_embeddings(const torch::nn::Module& module, const std::string& name) {
  for (const auto& child : module.named_modules(name)) {
    const auto* embedding = child.value()->as<torch::nn::EmbeddingImpl>();
    const auto* bag = child.value()->as<torch::nn::EmbeddingBagImpl>();
    require(!(embedding && embedding->options.sparse()) && !(bag && bag->options.sparse()), "parameter '",
            child.key(), child.key().empty() ? "" : ".",
            "weight' gets sparse gradients from its embedding; only dense ones can be reduced: build the "
            "embedding with sparse(false)");
  }
}

}  // namespace trireme::parallel
