#pragma once
// A rank's part of parameters that are sharded: of each a range of its elements in row-major order. Values.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace trireme::parallel {

struct Piece {
  std::vector<std::int64_t> global_sizes;  ///< of the whole parameter
  std::int64_t begin = 0;                  ///< its first element that is in the piece
  /// Of the tensor that holds the piece, and of its optimizer state: those of the parameter where the piece
  /// is all of it, else as many dims, all but the last 1.
  std::vector<std::int64_t> sizes;
};

/// By the name of the parameter.
using Pieces = std::map<std::string, Piece>;

}  // namespace trireme::parallel
