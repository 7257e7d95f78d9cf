#include "trireme/parallel/data/internal/encoded_sum.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "trireme/base/random.h"
#include "trireme/parallel/data/internal/encoded_slot.h"

namespace trireme::parallel {
namespace {

std::int64_t bytes_of_piece(const Summand& summand, const compress::Codec& codec, int num_ranks) {
  return slot_bytes(codec, piece_of_rank(summand.values.numel(), 0, num_ranks).numel, summand.how);
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
        per_piece_(rooms_.of_piece.numel()) {}

  void send_pieces() {
    std::int64_t at = 0;
    for (Summand& summand : summands_) at += encode(summand, at);
    pending_ = group_.all_to_all_async(rooms_.from_ranks, rooms_.to_pieces);
  }

  std::vector<Summand> finish() {
    pending_.wait();
    std::int64_t at = 0;
    for (const Summand& summand : summands_) at += sum_up_piece(summand, at);
    group_.all_gather(rooms_.of_pieces, rooms_.of_piece);
    at = 0;
    for (Summand& summand : summands_) at += take_sum(summand, at);
    return std::move(summands_);
  }

 private:
  /// A rank's slot for one vector in the messages.
  at::Tensor slot_of(const at::Tensor& messages, int rank, std::int64_t at, std::int64_t size) const {
    return messages.narrow(0, rank * per_piece_ + at, size);
  }

  std::int64_t encode(Summand& summand, std::int64_t at) const {
    const std::int64_t size = bytes_of_piece(summand, codec_, group_.size());
    const bool keeps = summand.residual.defined();
    const PieceOfRank whole{.begin = 0, .numel = summand.values.numel()};
    const at::Tensor sent = keeps ? summand.residual : summand.values;
    summand.finite.change(sent, [&](at::Tensor changed) {
      if (keeps) changed.add_(summand.values);
      leave_out_masked(summand, changed, whole);
    });
    Random random(summand.how.seed);
    for (int rank = 0; rank < group_.size(); ++rank) {
      const PieceOfRank piece = piece_of_rank(sent.numel(), rank, group_.size());
      summand.how.seed = random.bits();
      const at::Tensor part = sent.narrow(0, piece.begin, piece.numel);
      const at::Tensor slot = slot_of(rooms_.to_pieces, rank, at, size);
      write_slot(codec_, part, summand.how, summand.finite, slot);
      if (keeps) take_out(codec_, slot, summand.finite, part);
    }
    if (keeps)
      summand.finite.change(sent, [&](at::Tensor changed) { leave_out_masked(summand, changed, whole); });
    summand.how.seed = random.bits();
    return size;
  }

  std::int64_t sum_up_piece(const Summand& summand, std::int64_t at) {
    const std::int64_t size = bytes_of_piece(summand, codec_, group_.size());
    const PieceOfRank piece = piece_of_rank(summand.values.numel(), group_.rank(), group_.size());
    const bool keeps = summand.sums_residual.defined();
    at::Tensor sum =
        keeps ? summand.sums_residual.clone() : at::zeros({piece.numel}, summand.values.options());
    Flag finite = true;
    for (int rank = 0; rank < group_.size(); ++rank)
      finite = add_slot(codec_, slot_of(rooms_.from_ranks, rank, at, size), sum, summand.name) && finite;
    const at::Tensor to_all = rooms_.of_piece.narrow(0, at, size);
    leave_out_masked(summand, sum, piece);
    write_slot(codec_, sum, summand.how, finite, to_all);
    if (!keeps) return size;
    take_out(codec_, to_all, finite, sum);
    leave_out_masked(summand, sum, piece);
    finite.change(summand.sums_residual, [&](at::Tensor changed) { changed.copy_(sum); });
    return size;
  }

  std::int64_t take_sum(Summand& summand, std::int64_t at) {
    const std::int64_t size = bytes_of_piece(summand, codec_, group_.size());
    summand.values.zero_();
    summand.finite = true;
    for (int rank = 0; rank < group_.size(); ++rank) {
      const PieceOfRank piece = piece_of_rank(summand.values.numel(), rank, group_.size());
      const at::Tensor slot = slot_of(rooms_.of_pieces, rank, at, size);
      const at::Tensor part = summand.values.narrow(0, piece.begin, piece.numel);
      summand.finite = add_slot(codec_, slot, part, summand.name) && summand.finite;
      leave_out_masked(summand, part, piece);
    }
    summand.finite.show_in(summand.values);
    return size;
  }

  comm::Group group_;
  const compress::Codec& codec_;
  std::vector<Summand> summands_;
  SumRooms rooms_;
  std::int64_t per_piece_;
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
  std::int64_t bytes = 0;
  for (const Summand& summand : summands) bytes += bytes_of_piece(summand, codec, num_ranks);
  return bytes;
}

bool is_less_by_pieces(const compress::Codec& codec, std::int64_t numel, int num_ranks) {
  const auto bytes = [&](std::int64_t of) { return slot_bytes(codec, of, {}); };
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
