#pragma once
// Sequences to split, a GPT whose sizes two ranks do not divide, and meshes of ranks that hold parts of it.

#include <ATen/ops/tensor.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "trireme/data/dataset.h"
#include "trireme/train/config/run_config.h"

namespace trireme::train {

inline constexpr std::int64_t kTokens = 7, kVocabulary = 11;

/// Sequences of tokens. Each token follows from the previous one.
struct TokenSequences : data::Dataset {
  explicit TokenSequences(std::int64_t size) : samples(size) {}
  std::int64_t size() const override { return samples; }
  data::Example get(std::int64_t index) const override {
    std::vector<std::int64_t> tokens = {index % kVocabulary};
    while (tokens.size() <= kTokens) tokens.push_back((tokens.back() * 3 + index % 2) % kVocabulary);
    const at::Tensor all = at::tensor(tokens, at::kLong);
    return {all.narrow(0, 0, kTokens), all.narrow(0, 1, kTokens)};
  }
  std::int64_t samples;
};

inline data::DataSource token_sequences() {
  return {.name = "sequences",
          .train = std::make_shared<TokenSequences>(50),
          .test = std::make_shared<TokenSequences>(13),
          .input_shape = {kTokens},
          .num_classes = kVocabulary,
          .targets_per_sample = kTokens};
}

/// Sizes that two ranks do not divide: 11 tokens, sequences of 7.
inline RunConfig small_gpt_config() {
  RunConfig config;
  config.model = {.name = "gpt", .layers = 2, .heads = 4, .width = 12};
  config.train = {.max_steps = 6, .global_batch = 24, .clip_norm = 0.1};
  config.optimizer = {.name = "sgd", .lr = 0.5, .momentum = 0.9};
  config.comm.torch_threads = 1;
  config.comm.timeout_s = 60;
  return config;
}

struct FormMesh {
  const char* name;
  int ranks;
  ParallelOptions parallel;
  std::int64_t accumulation = 1;
  const char* precision = "fp32";
  const char* backend = "threads";
  std::vector<std::string> recomputed = {};  ///< names of layers
  std::string budget = {};                   ///< of activations
  const char* optimizer = "sgd";
};

inline std::ostream& operator<<(std::ostream& out, const FormMesh& mesh) { return out << mesh.name; }

/// The configuration of that GPT on such a mesh.
inline RunConfig config_of_form(const FormMesh& mesh) {
  RunConfig config = small_gpt_config();
  config.parallel = mesh.parallel;
  config.train.accumulation = mesh.accumulation;
  config.train.precision = mesh.precision;
  config.train.recompute_layers = mesh.recomputed;
  config.train.activation_budget = mesh.budget;
  config.optimizer.name = mesh.optimizer;
  if (config.optimizer.name != "sgd")
    config.optimizer = {.name = mesh.optimizer, .lr = 0.02, .weight_decay = 0.1};
  return config;
}

}  // namespace trireme::train
