#pragma once
// A decoder-only transformer with the names and sizes of nanoGPT (github.com/karpathy/nanoGPT, model.py),
// which follows GPT-2 (Radford et al., 2019). It has token and position embeddings, blocks, and a final norm.
// A block has pre-norm attention (Vaswani et al., arXiv 1706.03762) and a four times wider MLP with GELU. The
// transposed token embedding makes the logits. Layers have no bias, as in nanoGPT's training configurations.
// | Parameters: "transformer.wte.weight", "transformer.wpe.weight", "transformer.h.0.ln_1.weight",
// "transformer.h.0.attn.c_attn.weight", ..., "transformer.ln_f.weight". The last layer has no parameter of
// its own: nanoGPT's "lm_head.weight" is "transformer.wte.weight". Its files hold it under both names, which
// model.weights accepts.

#include <torch/nn/modules/embedding.h>

#include <memory>

#include "trireme/model/model.h"

namespace trireme::model {

/// Sizes of the model. Its number of parameters is about 12 layers width^2 and the embeddings.
struct GptOptions {
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t width = 128;  ///< of the residual stream; a multiple of heads
  std::int64_t block = 64;   ///< longest sequence, in tokens
  std::int64_t vocabulary = 65;
};

/// First values of a module with the parameters of a Gpt of so many blocks, or parts of them: normal with
/// standard deviation 0.02, projections into the residual stream 0.02 / sqrt(2 layers), norms ones.
void initialise_gpt(torch::nn::Module& module, std::int64_t layers, std::uint64_t seed);

class GptBlock;
class GptNorm;

class Gpt : public Model {
 public:
  /// Throws InvalidArgument: a width that is no multiple of the heads.
  explicit Gpt(const GptOptions& options);
  const GptOptions& options() const { return options_; }
  /// Tokens (batch, time), i64, time at most `block` -> logits (batch, time, vocabulary).
  at::Tensor forward(const at::Tensor& input) override;
  std::vector<Layer> layers() override;
  void initialise(std::uint64_t seed) override { initialise_gpt(*this, options_.layers, seed); }

 private:
  at::Tensor embed(const at::Tensor& input);
  at::Tensor logits(const at::Tensor& values) const;

  const GptOptions options_;
  torch::nn::Embedding tokens_, positions_;
  std::vector<std::shared_ptr<GptBlock>> blocks_;
  std::shared_ptr<GptNorm> last_norm_;
};

}  // namespace trireme::model
