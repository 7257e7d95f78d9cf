#include "trireme/parallel/context/ring_attention.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/parallel/context/internal/block_attention.h"

namespace trireme::parallel {
namespace {

/// A message to the next rank and one from the previous rank, in transfer.
class RingMessage {
 public:
  RingMessage() = default;
  /// The size of `arriving` follows from the rank whose tokens it contains.
  RingMessage(comm::Group group, at::Tensor leaving, at::Tensor arriving)
      : leaving_(std::move(leaving)), arriving_(std::move(arriving)) {
    const int ranks = group.size(), next = (group.rank() + 1) % ranks,
              before = (group.rank() + ranks - 1) % ranks;
    const auto send = [&] {
      sent_ = leaving_.numel() > 0 ? group.send_async(leaving_, next) : comm::Pending();
    };
    const auto receive = [&] {
      received_ = arriving_.numel() > 0 ? group.recv_async(arriving_, before) : comm::Pending();
    };
    // A send may block until its receive: so not all ranks may begin with a send.
    if (group.rank() % 2 == 0) {
      send();
      receive();
    } else {
      receive();
      send();
    }
  }
  /// The received tensor; undefined if no message was in transfer.
  at::Tensor wait() {
    received_.wait();
    sent_.wait();
    leaving_.reset();
    return std::exchange(arriving_, {});
  }

 private:
  at::Tensor leaving_, arriving_;
  comm::Pending sent_, received_;
};

/// The positions of queries and keys, within the pieces of two ranks, that form a block.
struct Block {
  Range queries, keys;
  bool causal = false;
  bool empty() const { return queries.size == 0 || keys.size == 0; }
};

/// Queries of `own` and keys of `owner`. If `owner` is an earlier rank, all queries attend to its early keys
/// and none to its late ones. If it is a later rank, only the late queries attend to its keys, to all of
/// them.
Block block_of(const ContextSequence& sequence, int own, int owner, bool causal) {
  const std::int64_t queries = sequence.size_on(own), keys = sequence.size_on(owner);
  Block block{.queries = {.begin = 0, .size = queries}, .keys = {.begin = 0, .size = keys}};
  if (!causal) return block;
  if (owner == own) {
    block.causal = true;
  } else if (owner < own) {
    block.keys.size = sequence.pieces_of(owner)[0].size;
  } else {
    block.queries.begin = sequence.pieces_of(own)[0].size;
    block.queries.size -= block.queries.begin;
  }
  return block;
}

at::Tensor places(const at::Tensor& tensor, const Range& range) {
  return tensor.narrow(2, range.begin, range.size);
}

/// The ring from the view of one rank.
class Ring {
 public:
  Ring(const ContextSequence& sequence, const RingAttentionOptions& options, double scale)
      : sequence_(sequence), causal_(options.causal), scale_(scale) {}

  BlockResult forward(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values) const {
    BlockResult all;
    at::Tensor both = at::stack({keys, values});
    for (int step = 0; step < ranks(); ++step) {
      RingMessage next = pass_on(both, step);
      const Block block = block_of(sequence_, rank(), owner_at(step), causal_);
      const at::Tensor block_keys = places(both[0], block.keys), block_values = places(both[1], block.keys);
      if (step == 0) {
        all = first(queries, block_keys, block_values, block);
      } else if (!block.empty()) {
        BlockResult part = {.output = places(all.output, block.queries),
                            .log_weights = places(all.log_weights, block.queries)};
        merge_block(part, attend_to_block(places(queries, block.queries), block_keys, block_values,
                                          {.causal = false, .scale = scale_}));
      }
      both = next.wait();
    }
    return all;
  }

  BlockGradients backward(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                          const AttentionEnd& end) const {
    const at::ScalarType sums = end.log_weights.scalar_type();
    at::Tensor both = at::stack({keys, values});
    at::Tensor of_queries = at::zeros(queries.sizes(), queries.options().dtype(sums));
    RingMessage gradients;  // of the current keys and values, from the previous ranks
    for (int step = 0; step < ranks(); ++step) {
      RingMessage next = pass_on(both, step);
      const Block block = block_of(sequence_, rank(), owner_at(step), causal_);
      BlockGradients terms;
      if (!block.empty()) terms = terms_of(queries, both, end, block);
      at::Tensor of_both = step == 0 ? at::zeros(both.sizes(), both.options().dtype(sums)) : gradients.wait();
      if (!block.empty()) {
        places(of_queries, block.queries).add_(terms.queries);
        places(of_both[0], block.keys).add_(terms.keys);
        places(of_both[1], block.keys).add_(terms.values);
      }
      both = next.wait();
      gradients = {sequence_.group, of_both, room_for(of_both, owner_at(step + 1))};
    }
    const at::Tensor of_own = gradients.wait();
    const at::ScalarType type = queries.scalar_type();
    return {.queries = of_queries.to(type), .keys = of_own[0].to(type), .values = of_own[1].to(type)};
  }

 private:
  int rank() const { return sequence_.group.rank(); }
  int ranks() const { return sequence_.group.size(); }
  /// The rank whose keys and values are here at that step.
  int owner_at(int step) const { return (rank() - step % ranks() + ranks()) % ranks(); }

  at::Tensor room_for(const at::Tensor& like, int owner) const {
    std::vector<std::int64_t> sizes = like.sizes().vec();
    sizes[3] = sequence_.size_on(owner);
    return at::empty(sizes, like.options());
  }
  RingMessage pass_on(const at::Tensor& both, int step) const {
    if (step + 1 == ranks()) return {};
    return {sequence_.group, both, room_for(both, owner_at(step + 1))};
  }

  /// The block of the rank's own keys: every token attends to itself.
  BlockResult first(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                    const Block& block) const {
    if (!block.empty())
      return attend_to_block(queries, keys, values, {.causal = block.causal, .scale = scale_});
    const auto sums =
        queries.options().dtype(queries.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
    return {.output = at::zeros(queries.sizes(), sums),
            .log_weights = at::zeros(queries.sizes().slice(0, 3), sums)};
  }

  BlockGradients terms_of(const at::Tensor& queries, const at::Tensor& both, const AttentionEnd& end,
                          const Block& block) const {
    const AttentionEnd of_block{.gradient = places(end.gradient, block.queries),
                                .output = places(end.output, block.queries),
                                .log_weights = places(end.log_weights, block.queries)};
    return derive_block(places(queries, block.queries), places(both[0], block.keys),
                        places(both[1], block.keys), of_block, {.causal = block.causal, .scale = scale_});
  }

  const ContextSequence sequence_;
  const bool causal_;
  const double scale_;
};

struct HeldRing : torch::CustomClassHolder {
  explicit HeldRing(Ring given) : ring(std::move(given)) {}
  const Ring ring;
};

class RingAttention : public torch::autograd::Function<RingAttention> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& queries,
                            const at::Tensor& keys, const at::Tensor& values, const Ring& ring) {
    const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
    const BlockResult result = ring.forward(queries, keys, values);
    const at::Tensor output = result.output.to(queries.scalar_type());
    context->save_for_backward({queries, keys, values, output, result.log_weights});
    context->saved_data["ring"] = at::IValue::make_capsule(c10::make_intrusive<HeldRing>(ring));
    return output;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    require(!at::GradMode::is_enabled(),
            "the gradient of ring_attention cannot be derived once more (create_graph)");
    const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const auto held = context->saved_data["ring"].toCapsule();
    BlockGradients found = static_cast<const HeldRing&>(*held).ring.backward(
        saved[0], saved[1], saved[2],
        {.gradient = gradients[0].to(saved[0].scalar_type()).contiguous(),
         .output = saved[3],
         .log_weights = saved[4]});
    return {found.queries, found.keys, found.values, {}};
  }
};

void check_inputs(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                  const ContextSequence& sequence) {
  for (const at::Tensor* each : {&queries, &keys, &values}) {
    require(each->dim() == 4 && each->is_floating_point() && each->sizes() == queries.sizes() &&
                each->scalar_type() == queries.scalar_type(),
            "attention is given queries ", queries.scalar_type(), " of shape ", queries.sizes(), ", keys ",
            keys.scalar_type(), " of ", keys.sizes(), " and values ", values.scalar_type(), " of ",
            values.sizes(),
            "; expected floating-point numbers of one type and shape: (batch, heads, tokens, features)");
  }
  const comm::Group& group = sequence.group;
  require(queries.size(2) == sequence.own_size(), "rank ", group.rank(), " of the ", group.size(),
          " of group '", group.name(), "' attends with ", queries.size(2), " tokens; of a sequence of ",
          sequence.length, " it has ", sequence.own_size(), ": cut with own_tokens()");
}

}  // namespace

at::Tensor ring_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                          const ContextSequence& sequence, const RingAttentionOptions& options) {
  check_inputs(queries, keys, values, sequence);
  if (sequence.group.size() == 1) {
    return at::scaled_dot_product_attention(queries, keys, values, /*attn_mask=*/{}, /*dropout_p=*/0,
                                            options.causal, options.scale);
  }
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(queries.size(3))));
  return RingAttention::apply(queries, keys, values, Ring(sequence, options, scale));
}

}  // namespace trireme::parallel
