#include "trireme/train/internal/piece_shards.h"

namespace trireme::train {
namespace {

const parallel::Piece* piece_of(const std::string& name, const at::Tensor& tensor,
                                const parallel::Pieces& pieces) {
  auto found = pieces.find(name);
  for (auto slash = name.find('/'); found == pieces.end() && slash != std::string::npos;
       slash = name.find('/', slash + 1)) {
    found = pieces.find(name.substr(slash + 1));
  }
  const bool is_piece = found != pieces.end() && tensor.sizes() == at::IntArrayRef(found->second.sizes);
  return is_piece ? &found->second : nullptr;
}

void add_boxes(checkpoint::Shards& shards, const std::string& name, const at::Tensor& tensor,
               const parallel::Piece& piece) {
  const at::Tensor run = tensor.view({-1});
  std::int64_t begin = 0;
  for (const checkpoint::Box& box :
       checkpoint::boxes_of_flat_range(piece.global_sizes, piece.begin, piece.begin + run.numel())) {
    shards.push_back({.name = name,
                      .global_sizes = piece.global_sizes,
                      .offsets = box.offsets,
                      .tensor = run.narrow(0, begin, box.numel()).view(box.sizes)});
    begin += box.numel();
  }
}

}  // namespace

checkpoint::Shards shards_of(const checkpoint::TensorMap& tensors, const parallel::Pieces& pieces) {
  checkpoint::Shards shards;
  for (const auto& [name, tensor] : tensors) {
    const parallel::Piece* piece = piece_of(name, tensor, pieces);
    if (piece == nullptr) {
      shards.push_back(checkpoint::whole_shard(name, tensor));
    } else {
      add_boxes(shards, name, tensor, *piece);
    }
  }
  return shards;
}

}  // namespace trireme::train
