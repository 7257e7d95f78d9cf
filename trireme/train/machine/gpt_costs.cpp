#include "trireme/train/machine/gpt_costs.h"

#include <algorithm>
#include <string>

#include "trireme/base/text.h"

namespace trireme::train {
namespace {

constexpr double kStreamBytes = 4;  ///< of an element between layers, of a parameter and of its gradient
constexpr double kIndexBytes = 8;   ///< of a token
constexpr double kBackwardOfAttention = 2.5;  ///< times the forward's products, one of which it recomputes

/// Cost of an operation: products, and memory traffic.
struct Work {
  double forward_s = 0, input_s = 0, weight_s = 0;
};

class Layers {
 public:
  Layers(const GptOnMachine& gpt, std::int64_t samples)
      : gpt_(gpt),
        tensor_(static_cast<double>(gpt.form.tensor)),
        width_(static_cast<double>(gpt.model.width)),
        vocabulary_(static_cast<double>(gpt.model.vocabulary)),
        operand_(gpt.operand_bytes),
        samples_(static_cast<double>(samples)),
        length_(static_cast<double>(gpt.model.block)),
        tokens_(samples_ * length_ / static_cast<double>(gpt.form.context)),
        stream_(gpt.form.sequence ? tokens_ / tensor_ : tokens_) {}

  ModelUse all() const {
    ModelUse model{.input_bytes = samples_ * length_ * kIndexBytes,
                   .target_bytes = samples_ * length_ * kIndexBytes,
                   .samples = static_cast<std::int64_t>(samples_)};
    model.layers.push_back(embedding());
    for (std::int64_t i = 0; i < gpt_.model.layers; ++i) model.layers.push_back(block(i));
    model.layers.push_back(logits());
    model.layers.push_back(loss());
    return model;
  }

 private:
  double bytes_s(double bytes) const { return bytes / gpt_.memory_bytes_per_s; }

  double product_s(double m, double n, double k) const {
    return std::max(2 * m * n * k / gpt_.flop_s, bytes_s(operand_ * (m * k + k * n + m * n)));
  }

  /// On `tokens_` rows. Autocast rounds the weight for each use, and its gradient is added in full precision.
  Work linear(double in, double out) const {
    const double casts = operand_ < kStreamBytes ? in * out * (kStreamBytes + operand_) : 0;
    return {.forward_s = product_s(tokens_, out, in) + bytes_s(casts),
            .input_s = product_s(tokens_, in, out),
            .weight_s = product_s(in, out, tokens_) + bytes_s(in * out * 2 * kStreamBytes + casts)};
  }

  /// Limited by memory: `forward` and `backward` are the bytes per row that a pass reads and writes.
  Work by_rows(double rows, double forward, double backward) const {
    return {.forward_s = bytes_s(rows * forward), .input_s = bytes_s(rows * backward), .weight_s = 0};
  }

  /// Reads and writes the residual stream, and its rounded copy.
  Work norm() const {
    const double casts = operand_ < kStreamBytes ? kStreamBytes + operand_ : 0;
    return by_rows(stream_, width_ * (2 * kStreamBytes + casts), width_ * (4 * kStreamBytes + casts));
  }

  Work residual() const {
    return by_rows(stream_, width_ * (2 * kStreamBytes + operand_), width_ * (2 * kStreamBytes + operand_));
  }

  /// Causal, so half of all token pairs, in tiles that stay on the chip (Dao et al., arXiv 2205.14135).
  Work attention() const {
    const double flops = 2 * tokens_ * length_ * width_ / tensor_;
    const double bytes = 4 * tokens_ * width_ / tensor_ * operand_;
    const auto pass_s = [&](double share) {
      return std::max(share * flops / gpt_.flop_s, bytes_s(share * bytes)) + share * keys_and_values_s();
    };
    return {.forward_s = pass_s(1), .input_s = pass_s(kBackwardOfAttention), .weight_s = 0};
  }

  /// Keys and values travel around the ring of ranks that hold the sequence (Liu et al., arXiv 2310.01889).
  double keys_and_values_s() const {
    const auto context = static_cast<int>(gpt_.form.context);
    if (context == 1) return 0;
    return gather_s(gpt_.links, {context, context * static_cast<int>(gpt_.form.tensor)},
                    2 * tokens_ * static_cast<double>(context) * width_ / tensor_ * operand_);
  }

  /// All-reduce over tensor-parallel ranks. With sequence parallelism, the gathers and scatters send the same
  /// bytes.
  double sum_s(double bytes) const {
    const auto ranks = static_cast<int>(gpt_.form.tensor);
    return ranks == 1 ? 0 : all_reduce_s(gpt_.links, {ranks, ranks}, bytes);
  }

  LayerTime time_of(std::initializer_list<Work> parts, double exchange_s, double backward_exchange_s) const {
    Work sum{.forward_s = exchange_s, .input_s = backward_exchange_s};
    for (const Work& part : parts) {
      sum.forward_s += part.forward_s;
      sum.input_s += part.input_s;
      sum.weight_s += part.weight_s;
    }
    return {.forward_s = sum.forward_s,
            .backward_s = sum.input_s + sum.weight_s,
            .backward_input_s = sum.input_s,
            .backward_weight_s = sum.weight_s,
            .bare_forward_s = sum.forward_s,
            .recomputed_backward_s = sum.forward_s + sum.input_s + sum.weight_s};
  }

  ParameterUse parameter(const std::string& name, double numel, bool is_rounded) const {
    return {.name = "transformer." + name,
            .bytes = static_cast<std::int64_t>(numel * kStreamBytes),
            .numel = static_cast<std::int64_t>(numel),
            .is_rounded = is_rounded && operand_ < kStreamBytes};
  }

  static void add_gradients(LayerUse& layer) {
    for (const ParameterUse& each : layer.parameters) {
      layer.memory.gradient_bytes += static_cast<double>(each.bytes);
      layer.memory.largest_gradient_bytes =
          std::max(layer.memory.largest_gradient_bytes, static_cast<double>(each.bytes));
    }
    layer.memory.kept.forward_s = layer.time.forward_s;
  }

  double stream_bytes() const { return stream_ * width_ * kStreamBytes; }
  double operand_bytes() const { return tokens_ * width_ * operand_; }
  double rows_of_vocabulary() const { return vocabulary_ / tensor_; }

  LayerUse embedding() const {
    LayerUse layer{.name = "embedding", .memory = {}};
    layer.parameters = {parameter("wte.weight", rows_of_vocabulary() * width_, false),
                        parameter("wpe.weight", length_ * width_, false)};
    Work work = by_rows(stream_, width_ * 3 * kStreamBytes, 0);
    work.weight_s = bytes_s((rows_of_vocabulary() * 3 + stream_ * 2) * width_ * kStreamBytes);
    layer.time = time_of({work}, sum_s(tokens_ * width_ * kStreamBytes), 0);
    layer.memory.kept = {.inner_bytes = 0, .output_bytes = stream_bytes()};
    layer.memory.forward_bytes = 2 * stream_bytes();
    layer.memory.backward_bytes = stream_bytes() + length_ * width_ * kStreamBytes;
    layer.memory.input_backward_bytes = layer.memory.kept.output_bytes;
    layer.memory.for_weights_bytes = layer.memory.kept.output_bytes;
    add_gradients(layer);
    return layer;
  }

  LayerUse block(std::int64_t index) const {
    const std::string at = text("h.", index, ".");
    LayerUse layer{.name = text("block ", index), .memory = {}};
    const double square = width_ * width_ / tensor_;
    layer.parameters = {
        parameter(at + "ln_1.weight", width_, false),
        parameter(at + "attn.c_attn.weight", 3 * square, true),
        parameter(at + "attn.c_proj.weight", square, true),
        parameter(at + "ln_2.weight", width_, false),
        parameter(at + "mlp.c_fc.weight", 4 * square, true),
        parameter(at + "mlp.c_proj.weight", 4 * square, true),
    };
    const double part = width_ / tensor_;
    const Work gelu = by_rows(tokens_, 8 * part * operand_, 12 * part * operand_);
    const double exchanges_s = 2 * sum_s(operand_bytes());
    layer.time = time_of({norm(), linear(width_, 3 * part), attention(), linear(part, width_), residual(),
                          norm(), linear(width_, 4 * part), gelu, linear(4 * part, width_), residual()},
                         exchanges_s, exchanges_s);
    set_memory_of_block(layer.memory);
    add_gradients(layer);
    return layer;
  }

  /// Saved tensors: the input of each product; queries, keys, values and their sums; the inputs of the GELU
  /// and of the second norm.
  void set_memory_of_block(plan::LayerMemory& memory) const {
    const double sums = tokens_ * static_cast<double>(gpt_.model.heads) / tensor_ * kStreamBytes;
    const double parts = operand_bytes() / tensor_;
    memory.kept = {.inner_bytes = 2 * operand_bytes() + stream_bytes() + (3 + 1 + 4 + 4) * parts + sums,
                   .output_bytes = stream_bytes(),
                   .saves_input = true,
                   .saves_output = false};
    memory.forward_bytes = memory.kept.inner_bytes + 2 * stream_bytes();
    memory.backward_bytes = stream_bytes() + 4 * parts;
    // For each of the four products: its input, and the gradient of its output.
    memory.for_weights_bytes = 2 * operand_bytes() + (1 + 4) * parts + (3 + 4) * parts + 2 * operand_bytes();
    memory.input_backward_bytes = memory.for_weights_bytes + 2 * stream_bytes();
  }

  LayerUse logits() const {
    LayerUse layer{.name = "logits", .memory = {}};
    layer.parameters = {parameter("ln_f.weight", width_, false),
                        parameter("wte.weight", rows_of_vocabulary() * width_, false)};
    layer.time = time_of({norm(), linear(width_, rows_of_vocabulary())}, 0, sum_s(operand_bytes()));
    const double classes = tokens_ * rows_of_vocabulary() * operand_;
    layer.memory.kept = {
        .inner_bytes = operand_bytes(), .output_bytes = classes, .saves_input = true, .saves_output = false};
    layer.memory.forward_bytes = operand_bytes() + classes;
    layer.memory.backward_bytes = 2 * stream_bytes();
    layer.memory.for_weights_bytes =
        operand_bytes() + 2 * classes + rows_of_vocabulary() * width_ * kStreamBytes;
    layer.memory.input_backward_bytes = layer.memory.for_weights_bytes + stream_bytes();
    add_gradients(layer);
    return layer;
  }

  /// Log-probabilities of all classes, in full precision.
  LayerUse loss() const {
    LayerUse layer{.name = "loss", .memory = {}};
    const double classes = rows_of_vocabulary();
    const double casts = operand_ < kStreamBytes ? kStreamBytes + operand_ : 0;
    layer.time = time_of(
        {by_rows(tokens_, classes * (2 * kStreamBytes + casts), classes * (3 * kStreamBytes + casts))}, 0, 0);
    const double logarithms = tokens_ * classes * kStreamBytes;
    layer.memory.kept = {.inner_bytes = logarithms, .output_bytes = kStreamBytes};
    layer.memory.forward_bytes = (casts > 0 ? 2 : 1) * logarithms;
    layer.memory.backward_bytes = 2 * logarithms;
    layer.memory.input_backward_bytes = 2 * logarithms;
    layer.memory.kept.forward_s = layer.time.forward_s;
    return layer;
  }

  const GptOnMachine& gpt_;
  const double tensor_, width_, vocabulary_, operand_, samples_, length_;
  const double tokens_;  ///< of a rank
  const double stream_;  ///< tokens of the residual stream on a rank
};

}  // namespace

ModelUse gpt_use(const GptOnMachine& gpt, std::int64_t samples) { return Layers(gpt, samples).all(); }

double gpt_flops(const model::GptOptions& model, std::int64_t samples) {
  const auto width = static_cast<double>(model.width), block = static_cast<double>(model.block);
  const double tokens = static_cast<double>(samples) * block;
  const double of_block = 24 * tokens * width * width + 4 * tokens * block * width;
  return 3 * (static_cast<double>(model.layers) * of_block +
              2 * tokens * width * static_cast<double>(model.vocabulary));
}

}  // namespace trireme::train
