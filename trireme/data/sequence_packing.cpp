#include "trireme/data/sequence_packing.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

/// A part of a document in a block.
struct Piece {
  std::int64_t document = 0;
  std::int64_t begin = 0, size = 0;  ///< tokens of the document
};

/// Block i consists of the pieces begins[i] to begins[i + 1] - 1.
struct PackedBlocks {
  std::vector<Piece> pieces;
  std::vector<std::int64_t> begins = {0};
  void end_block() { begins.push_back(static_cast<std::int64_t>(pieces.size())); }
  std::int64_t size() const { return static_cast<std::int64_t>(begins.size()) - 1; }
};

at::Tensor tokens_of(const Dataset& documents, std::int64_t document) {
  Example sample = documents.get(document);
  if (sample.input.size() == 1 && sample.input->dim() == 1 && sample.input->scalar_type() == at::kLong)
    return sample.input->contiguous();
  throw DataError(text("document ", document, " has ", batch::to_text(sample.input),
                       "; expected one input, i64 with one dim, to be packed into blocks"));
}

/// Free room of blocks. A tree of maxima finds the first block with enough room in logarithmic time.
class Rooms {
 public:
  Rooms(std::size_t blocks, std::int64_t room) : leaves_(std::bit_ceil(blocks)), most_(2 * leaves_, room) {}
  std::size_t take(std::int64_t size) {
    std::size_t node = 1;
    while (node < leaves_) node = most_[2 * node] >= size ? 2 * node : 2 * node + 1;
    const std::size_t block = node - leaves_;
    for (most_[node] -= size; node > 1;) {
      node /= 2;
      most_[node] = std::max(most_[2 * node], most_[2 * node + 1]);
    }
    return block;
  }

 private:
  std::size_t leaves_;
  std::vector<std::int64_t> most_;
};

PackedBlocks first_fit(const std::vector<std::int64_t>& lengths, std::int64_t length) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    for (std::int64_t begin = 0; begin < lengths[i]; begin += length)
      pieces.push_back({static_cast<std::int64_t>(i), begin, std::min(length, lengths[i] - begin)});
  }
  if (pieces.empty()) return {};
  // There are never more blocks than pieces.
  Rooms rooms(pieces.size(), length);
  std::vector<std::pair<std::size_t, std::size_t>> places;  // block, piece
  for (std::size_t i = 0; i < pieces.size(); ++i) places.emplace_back(rooms.take(pieces[i].size), i);
  std::ranges::sort(places);
  PackedBlocks blocks;
  for (std::size_t i = 0; i < places.size(); ++i) {
    blocks.pieces.push_back(pieces[places[i].second]);
    if (i + 1 == places.size() || places[i + 1].first != places[i].first) blocks.end_block();
  }
  return blocks;
}

PackedBlocks concatenate(const std::vector<std::int64_t>& lengths, std::int64_t length) {
  PackedBlocks blocks;
  std::int64_t room = length;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    for (std::int64_t begin = 0; begin < lengths[i];) {
      const std::int64_t size = std::min(room, lengths[i] - begin);
      blocks.pieces.push_back({static_cast<std::int64_t>(i), begin, size});
      begin += size;
      if ((room -= size) > 0) continue;
      blocks.end_block();
      room = length;
    }
  }
  blocks.pieces.resize(static_cast<std::size_t>(blocks.begins.back()));
  return blocks;
}

class PackedSequences : public Dataset {
 public:
  PackedSequences(std::shared_ptr<const Dataset> documents, const PackingOptions& options)
      : documents_(std::move(documents)),
        length_(options.length),
        padding_(options.padding),
        ignored_(options.ignored) {
    std::vector<std::int64_t> lengths = options.lengths;
    if (lengths.empty()) {
      for (std::int64_t i = 0; i < documents_->size(); ++i)
        lengths.push_back(tokens_of(*documents_, i).size(0));
    }
    auto blocks =
        options.packing == Packing::kFirstFit ? first_fit(lengths, length_) : concatenate(lengths, length_);
    require(blocks.size() > 0, lengths.size(), " documents of ",
            std::accumulate(lengths.begin(), lengths.end(), 0L), " tokens make no block of ", length_);
    blocks_ = std::make_shared<const PackedBlocks>(std::move(blocks));
    lengths_ = std::make_shared<const std::vector<std::int64_t>>(std::move(lengths));
  }

  std::int64_t size() const override { return blocks_->size(); }
  std::shared_ptr<const Dataset> in_epoch(std::uint64_t epoch) const override {
    auto documents = documents_->in_epoch(epoch);
    if (!documents) return nullptr;
    auto view = std::make_shared<PackedSequences>(*this);
    view->documents_ = std::move(documents);
    return view;
  }

  Example get(std::int64_t index) const override {
    require(index >= 0 && index < size(), "block ", index, " of ", size(), " was asked for");
    const auto filled = [&](std::int64_t value) { return at::full({length_}, value, at::kLong); };
    const at::Tensor tokens = filled(padding_), documents = filled(0), positions = filled(0),
                     next = filled(ignored_);
    const auto at_place = [](const at::Tensor& tensor, std::int64_t place) {
      return tensor.data_ptr<std::int64_t>() + place;
    };
    std::int64_t place = 0, number = 0;
    for (auto i = begin_of(index); i < begin_of(index + 1); ++i) {
      const Piece& piece = blocks_->pieces[static_cast<std::size_t>(i)];
      const at::Tensor document = read(piece.document);
      const auto* from = document.const_data_ptr<std::int64_t>() + piece.begin;
      const std::int64_t followed = std::min(piece.size, document.size(0) - piece.begin - 1);
      std::copy_n(from, piece.size, at_place(tokens, place));
      std::copy_n(from + 1, std::max<std::int64_t>(followed, 0), at_place(next, place));
      std::fill_n(at_place(documents, place), piece.size, ++number);
      std::iota(at_place(positions, place), at_place(positions, place) + piece.size, piece.begin);
      place += piece.size;
    }
    return {{{"tokens", tokens}, {"documents", documents}, {"positions", positions}}, next};
  }

 private:
  std::int64_t begin_of(std::int64_t block) const { return blocks_->begins[static_cast<std::size_t>(block)]; }

  at::Tensor read(std::int64_t number) const {
    at::Tensor document = tokens_of(*documents_, number);
    const std::int64_t wanted = (*lengths_)[static_cast<std::size_t>(number)];
    if (document.size(0) != wanted) {
      throw DataError(text("document ", number, " has ", document.size(0), " tokens, and had ", wanted,
                           " when blocks were made of them; lengths must not vary"));
    }
    return document;
  }

  std::shared_ptr<const Dataset> documents_;
  std::int64_t length_, padding_, ignored_;
  std::shared_ptr<const PackedBlocks> blocks_;
  std::shared_ptr<const std::vector<std::int64_t>> lengths_;
};

}  // namespace

std::shared_ptr<const Dataset> pack_sequences(std::shared_ptr<const Dataset> documents,
                                              const PackingOptions& options) {
  require(options.length >= 1, "a block of ", options.length, " tokens is none");
  require(options.lengths.empty() || static_cast<std::int64_t>(options.lengths.size()) == documents->size(),
          options.lengths.size(), " lengths were given of ", documents->size(), " documents");
  require(std::ranges::none_of(options.lengths, [](std::int64_t length) { return length < 0; }),
          "a document has a length below 0");
  return std::make_shared<PackedSequences>(std::move(documents), options);
}

}  // namespace trireme::data
