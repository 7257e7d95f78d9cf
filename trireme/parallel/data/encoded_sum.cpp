#include "trireme/parallel/data/internal/encoded_sum.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "trireme/base/random.h"
#include "trireme/parallel/data/internal/encoded_slot.h"

namespace trireme::parallel {
namespace {

std::size_t bytes_of_piece(const Summand& summand, const compress::Codec& codec, int num_ranks) {
  const std::int64_t longest = piece_of_rank(summand.values.numel(), 0, num_ranks).numel;
  return slot_bytes(codec, static_cast<std::size_t>(longest), summand.how);
}

/// Encodes `values`, and leaves in them what that does not say, where it is kept.
void write(const compress::Codec& codec, const compress::Codec::Options& how, const at::Tensor& values,
           bool keeps, std::span<std::byte> slot) {
  const std::span<const std::byte> said = write_slot(codec, span_of(values), how, slot);
  if (keeps) codec.take_out(said, span_of(values));
}

void leave_out_masked(const Summand& summand, const at::Tensor& values, const PieceOfRank& piece) {
  if (summand.mask.defined()) at::Tensor(values).mul_(summand.mask.narrow(0, piece.begin, piece.numel));
}

class EncodedSum {
 public:
  EncodedSum(comm::Group group, const compress::Codec& codec, std::vector<Summand> summands, SumRooms rooms)
      : group_(std::move(group)),
        codec_(codec),
        summands_(std::move(summands)),
        rooms_(std::move(rooms)),
        per_piece_(static_cast<std::size_t>(rooms_.of_piece.numel())) {}

  void send_pieces() {
    std::size_t at = 0;
    for (Summand& summand : summands_) {
      const std::size_t size = bytes_of_piece(summand, codec_, group_.size());
      for (int rank = 0; rank < group_.size(); ++rank) write_not_finite(to_piece(rank, at, size));
      if (summand.finite) encode(summand, at, size);
      at += size;
    }
    pending_ = group_.all_to_all_async(rooms_.from_ranks, rooms_.to_pieces);
  }

  std::vector<Summand> finish() {
    pending_.wait();
    std::size_t at = 0;
    for (const Summand& summand : summands_) at += sum_up_piece(summand, at);
    group_.all_gather(rooms_.of_pieces, rooms_.of_piece);
    at = 0;
    for (Summand& summand : summands_) at += take_sum(summand, at);
    return std::move(summands_);
  }

 private:
  std::span<std::byte> to_piece(int rank, std::size_t at, std::size_t size) const {
    return bytes_of(rooms_.to_pieces).subspan(static_cast<std::size_t>(rank) * per_piece_ + at, size);
  }

  void encode(Summand& summand, std::size_t at, std::size_t size) const {
    const bool keeps = summand.residual.defined();
    const at::Tensor sent = keeps ? summand.residual.add_(summand.values) : summand.values;
    const PieceOfRank whole{.begin = 0, .numel = sent.numel()};
    leave_out_masked(summand, sent, whole);
    Random random(summand.how.seed);
    for (int rank = 0; rank < group_.size(); ++rank) {
      const PieceOfRank piece = piece_of_rank(sent.numel(), rank, group_.size());
      summand.how.seed = random.bits();
      write(codec_, summand.how, sent.narrow(0, piece.begin, piece.numel), keeps, to_piece(rank, at, size));
    }
    if (keeps) leave_out_masked(summand, sent, whole);
    summand.how.seed = random.bits();
  }

  std::size_t sum_up_piece(const Summand& summand, std::size_t at) {
    const std::size_t size = bytes_of_piece(summand, codec_, group_.size());
    const PieceOfRank piece = piece_of_rank(summand.values.numel(), group_.rank(), group_.size());
    const bool keeps = summand.sums_residual.defined();
    at::Tensor sum = keeps ? summand.sums_residual.clone() : at::zeros({piece.numel}, at::kFloat);
    bool finite = true;
    for (int rank = 0; rank < group_.size(); ++rank) {
      const auto slot =
          bytes_of(rooms_.from_ranks).subspan(static_cast<std::size_t>(rank) * per_piece_ + at, size);
      finite = add_slot(codec_, slot, span_of(sum), summand.name) && finite;
    }
    const std::span<std::byte> to_all = bytes_of(rooms_.of_piece).subspan(at, size);
    if (!finite) {
      write_not_finite(to_all);
      return size;
    }
    leave_out_masked(summand, sum, piece);
    write(codec_, summand.how, sum, keeps, to_all);
    leave_out_masked(summand, sum, piece);
    if (keeps) at::Tensor(summand.sums_residual).copy_(sum);
    return size;
  }

  std::size_t take_sum(Summand& summand, std::size_t at) {
    const std::size_t size = bytes_of_piece(summand, codec_, group_.size());
    summand.values.zero_();
    summand.finite = true;
    for (int rank = 0; rank < group_.size(); ++rank) {
      const PieceOfRank piece = piece_of_rank(summand.values.numel(), rank, group_.size());
      const auto slot =
          bytes_of(rooms_.of_pieces).subspan(static_cast<std::size_t>(rank) * per_piece_ + at, size);
      const at::Tensor part = summand.values.narrow(0, piece.begin, piece.numel);
      summand.finite = add_slot(codec_, slot, span_of(part), summand.name) && summand.finite;
      leave_out_masked(summand, part, piece);
    }
    if (!summand.finite) summand.values.fill_(std::numeric_limits<float>::quiet_NaN());
    return size;
  }

  comm::Group group_;
  const compress::Codec& codec_;
  std::vector<Summand> summands_;
  SumRooms rooms_;
  std::size_t per_piece_;
  comm::Pending pending_;
};

}  // namespace

PieceOfRank piece_of_rank(std::int64_t numel, int rank, int num_ranks) {
  const std::int64_t longest = (numel + num_ranks - 1) / num_ranks;
  const std::int64_t begin = std::min(numel, longest * rank);
  return {.begin = begin, .numel = std::min(longest, numel - begin)};
}

std::int64_t bytes_per_piece(const std::vector<Summand>& summands, const compress::Codec& codec,
                             int num_ranks) {
  std::size_t bytes = 0;
  for (const Summand& summand : summands) bytes += bytes_of_piece(summand, codec, num_ranks);
  return static_cast<std::int64_t>(bytes);
}

bool is_less_by_pieces(const compress::Codec& codec, std::int64_t numel, int num_ranks) {
  const auto bytes = [&](std::int64_t of) { return slot_bytes(codec, static_cast<std::size_t>(of), {}); };
  return 2 * bytes(piece_of_rank(numel, 0, num_ranks).numel) < bytes(numel);
}

std::function<std::vector<Summand>()> start_encoded_sum(comm::Group& group, const compress::Codec& codec,
                                                        std::vector<Summand> summands,
                                                        const SumRooms& rooms) {
  const auto sum = std::make_shared<EncodedSum>(group, codec, std::move(summands), rooms);
  sum->send_pieces();
  return [sum] { return sum->finish(); };
}

}  // namespace trireme::parallel
