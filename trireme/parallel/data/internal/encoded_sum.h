#pragma once
// Sums over the ranks with a codec (compress/codec.h) in both directions. A rank encodes a piece of its
// vectors for each rank. That rank sums the received pieces (all-to-all), encodes the sums and sends them to
// all (all-gather). A rank sends 2 (n - 1) / n of its encoded vectors, for any number of ranks. The residual
// of a codec stays on the encoding rank, of sums, too. All ranks end with the same bits. One thread.

#include <functional>
#include <string>
#include <vector>

#include "trireme/compress/codec.h"
#include "trireme/parallel/data/internal/compressing_hook.h"

namespace trireme::parallel {

/// A rank's part of a vector: the elements from `begin` on. The last ranks' may be empty.
struct PieceOfRank {
  std::int64_t begin, numel;
};
PieceOfRank piece_of_rank(std::int64_t numel, int rank, int num_ranks);

/// A vector to be added up.
struct Summand {
  std::string name;
  at::Tensor values;              ///< flat; in: this rank's, out: the sum
  Flag finite = true;             ///< in: this rank's; out: all are, and the sum is there; else it is NaN
  compress::Codec::Options how;   ///< with a seed of this rank, step and vector
  at::Tensor residual = {};       ///< undefined: the codec leaves nothing out
  at::Tensor sums_residual = {};  ///< the same, of this rank's piece of the sum
  at::Tensor mask = {};           ///< 0: the element takes no part, and comes as 0; undefined: all do
};

/// Rooms for messages that are used again in every step.
struct SumRooms {
  at::Tensor to_pieces, from_ranks, of_piece, of_pieces;
};
/// Bytes of `of_piece`; the others have so many for each rank.
std::int64_t bytes_per_piece(const std::vector<Summand>& summands, const compress::Codec& codec,
                             int num_ranks);

/// Whether so many elements are fewer bytes to send by pieces than as a whole to each other rank.
bool is_less_by_pieces(const compress::Codec& codec, std::int64_t numel, int num_ranks);

/// Starts; the returned function waits, and leaves the sums in the summands that it gives back.
std::function<std::vector<Summand>()> start_encoded_sum(comm::Group& group, const compress::Codec& codec,
                                                        std::vector<Summand> summands, const SumRooms& rooms);

}  // namespace trireme::parallel
