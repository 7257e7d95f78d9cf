#include <algorithm>
#include <functional>

#include "trireme/compress/codec.h"
#include "trireme/ps/internal/client_work.h"
#include "trireme/ps/internal/hash.h"
#include "trireme/ps/internal/row_batch.h"

namespace trireme::ps {

/// The random numbers depend only on the table, the worker and the number of the push. Runs of the same steps
/// are therefore rounded alike.
std::uint64_t ClientWork::seed_of_push(const TableSpec& spec, const Place& place) const {
  const auto lane = lanes_.find(place.partition);
  const Sequence number = lane == lanes_.end() ? 0 : lane->second.last;
  return hash_number(number, hash_number(place.part, hash_number(life_.worker, spec.seed)));
}

wire::Buffer ClientWork::encoded(const TableSpec& spec, const Place& place, wire::Buffer values) {
  const compress::Codec* encoding = compress::codec(spec.compression.push);
  if (encoding == nullptr) return values;
  const compress::Codec::Options options = {.fraction = spec.compression.fraction,
                                            .seed = seed_of_push(spec, place)};
  if (spec.kind == TableKind::kSparse) return encoded_rows(*encoding, values.bytes(), options);
  const AlignedFloats given(values.bytes());
  if (!encoding->leaves_out()) return in_buffer(*encoding, given.get(), options);
  std::vector<float>& residual = residuals_[{spec.id, place.part}];
  residual.resize(given.get().size());
  std::ranges::transform(residual, given.get(), residual.begin(), std::plus<>());
  const wire::Buffer sent = in_buffer(*encoding, residual, options);
  encoding->take_out(sent.bytes(), residual);
  return sent;
}

wire::Buffer ClientWork::with_base(const TableSpec& spec, std::uint64_t chunk,
                                   const wire::Buffer& gradient) const {
  const auto base = bases_.find({spec.id, chunk});
  if (base == bases_.end()) return gradient;
  std::vector<std::byte> bytes(gradient.bytes().begin(), gradient.bytes().end());
  bytes.insert(bytes.end(), base->second.bytes().begin(), base->second.bytes().end());
  return wire::Buffer::of(std::move(bytes));
}

void ClientWork::keep_base(const OutgoingPull& pull, const PullReply& reply, const wire::Buffer& values) {
  const auto spec = map().tables.find(pull.head.table);
  if (spec == map().tables.end() || spec->second.delay.lambda == 0 || !reply.changed) return;
  const std::size_t num_bytes = spec->second.elements_of(pull.head.chunk) * sizeof(float);
  if (values.size() < num_bytes) return;  // a wrong answer of a server
  bases_[{pull.head.table, pull.head.chunk}] = values.part(0, num_bytes);
}

std::optional<wire::Buffer> ClientWork::decoded(const OutgoingPull& pull, const PullReply& reply,
                                                const wire::Buffer& body) {
  if (pull.codec == nullptr || !reply.changed) return body;
  if (!pull.codec->fits(body.bytes(), pull.num_values)) return std::nullopt;
  std::vector<float> values(pull.num_values);
  pull.codec->decode(body.bytes(), values);
  return in_buffer(std::move(values));
}

std::span<const float> ClientWork::residual(TableId table, std::uint64_t chunk) const {
  const auto found = residuals_.find({table, chunk});
  return found == residuals_.end() ? std::span<const float>() : std::span<const float>(found->second);
}

}  // namespace trireme::ps
