#include "trireme/data/token_dataset.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/data/internal/awaited_read.h"
#include "trireme/data/internal/record_split.h"

namespace trireme::data {
namespace {

/// A bit per page: whether it has been checked.
class Marks {
 public:
  explicit Marks(std::size_t count)
      : words_(std::make_unique<std::atomic<std::uint64_t>[]>(count / 64 + 1)) {}
  bool has(std::size_t i) const {
    return (words_[i / 64].load(std::memory_order_relaxed) >> (i % 64) & 1) != 0;
  }
  void set(std::size_t i) const {
    words_[i / 64].fetch_or(std::uint64_t{1} << (i % 64), std::memory_order_relaxed);
  }

 private:
  std::unique_ptr<std::atomic<std::uint64_t>[]> words_;
};

template <class Token>
void put_as(const char* tokens, std::int64_t block, std::int64_t* input, std::int64_t* target) {
  for (std::int64_t i = 0; i <= block; ++i) {
    Token token;
    std::memcpy(&token, tokens + static_cast<std::size_t>(i) * sizeof(Token), sizeof(Token));
    if (i < block) input[i] = token;
    if (i > 0) target[i - 1] = token;
  }
}

}  // namespace

struct TokenDataset::State {
  State(const PackedFiles& files, const PackedManifest& manifest, const std::string& split,
        const TokenBlocks& how)
      : tokens(layout_in(manifest, files)),
        blocks(how),
        count(manifest.split(split, files).samples),
        pages(files, manifest.split(split, files)),
        checked(static_cast<std::size_t>(pages.size())),
        width(static_cast<std::size_t>(tokens.bytes_per_token)) {
    require(blocks.block >= 1 && blocks.stride >= 1, "a sample of text needs at least one token");
    if (count <= blocks.block) {
      throw DataError(text("the split '", split, "' of ", files.name(), " has ", count,
                           " tokens; a sample of data.block = ", blocks.block, " needs ", blocks.block + 1));
    }
    for (const auto& shard : pages.shards()) {
      for (std::int64_t i = 0; i < shard->records(); ++i) {
        const std::int64_t begin = (shard->first() + i) * tokens.page_tokens;
        const std::int64_t expected = std::min(tokens.page_tokens, count - begin) * tokens.bytes_per_token;
        if (static_cast<std::int64_t>(shard->bytes_of(i)) != expected)
          shard->fail(i, text("is not as long as its tokens: they have ", expected, " bytes"));
      }
    }
  }

  static const TokenLayout& layout_in(const PackedManifest& manifest, const PackedFiles& files) {
    if (!manifest.tokens)
      throw DataError(text(files.name(), " holds samples, no text; read it as a RecordDataset"));
    return *manifest.tokens;
  }

  std::int64_t size() const { return (count - blocks.block - 1) / blocks.stride + 1; }

  /// The shards that a batch was read from.
  using Touched = std::vector<const ShardFile*>;

  /// Reads tokens from `begin` on, as stored in the file.
  void read(std::int64_t begin, std::span<char> into, Touched& touched) const {
    for (std::int64_t page = begin / tokens.page_tokens; !into.empty(); ++page) {
      const RecordSplit::Place place = pages.find(page);
      const std::size_t first = static_cast<std::size_t>(begin - page * tokens.page_tokens) * width;
      const std::size_t bytes = std::min(into.size(), place.shard->bytes_of(place.record) - first);
      if (checked.has(static_cast<std::size_t>(page))) {
        place.shard->read_within(place.record, first, into.first(bytes));
      } else {
        std::string whole(place.shard->bytes_of(place.record), '\0');
        place.shard->read(place.record, 1, whole);
        checked.set(static_cast<std::size_t>(page));
        std::memcpy(into.data(), whole.data() + first, bytes);
      }
      if (std::find(touched.begin(), touched.end(), place.shard) == touched.end())
        touched.push_back(place.shard);
      into = into.subspan(bytes);
      begin = (page + 1) * tokens.page_tokens;
    }
  }

  /// Starts read-ahead of a sample's bytes.
  void will_read(std::int64_t index) const {
    const std::int64_t begin = index * blocks.stride, end = begin + blocks.block + 1;
    for (std::int64_t page = begin / tokens.page_tokens; page * tokens.page_tokens < end; ++page) {
      const RecordSplit::Place place = pages.find(page);
      const std::size_t whole = place.shard->bytes_of(place.record);
      const std::int64_t before = page * tokens.page_tokens;
      const bool is_checked = checked.has(static_cast<std::size_t>(page));
      const std::size_t from =
          is_checked ? static_cast<std::size_t>(std::max(begin - before, std::int64_t{0})) * width : 0;
      const std::size_t to =
          is_checked ? std::min(whole, static_cast<std::size_t>(end - before) * width) : whole;
      place.shard->will_read(place.record, from, to - from);
    }
  }

  void copy(std::int64_t index, std::span<char> buffer, std::int64_t* input, std::int64_t* target,
            Touched& touched) const {
    require(index >= 0 && index < size(), "sample ", index, " of a packed text was asked for, it has ",
            size());
    read(index * blocks.stride, buffer, touched);
    const char* raw = buffer.data();
    if (width == 1) return put_as<std::uint8_t>(raw, blocks.block, input, target);
    if (width == 2) return put_as<std::uint16_t>(raw, blocks.block, input, target);
    put_as<std::uint32_t>(raw, blocks.block, input, target);
  }

  std::string buffer() const { return std::string(static_cast<std::size_t>(blocks.block + 1) * width, '\0'); }

  const TokenLayout tokens;
  const TokenBlocks blocks;
  const std::int64_t count;
  const RecordSplit pages;
  const Marks checked;
  const std::size_t width;
};

TokenDataset::TokenDataset(const PackedFiles& files, const std::string& split, const TokenBlocks& blocks)
    : TokenDataset(files, read_manifest(files), split, blocks) {}

TokenDataset::TokenDataset(const PackedFiles& files, const PackedManifest& manifest, const std::string& split,
                           const TokenBlocks& blocks)
    : state_(std::make_unique<const State>(files, manifest, split, blocks)) {}

TokenDataset::~TokenDataset() = default;

std::int64_t TokenDataset::size() const { return state_->size(); }

Example TokenDataset::get(std::int64_t index) const {
  const Example batch = get_batch({&index, 1});
  return {batch.input->select(0, 0), batch.target->select(0, 0)};
}

Example TokenDataset::get_batch(std::span<const std::int64_t> indices) const {
  const auto count = static_cast<std::int64_t>(indices.size()), block = state_->blocks.block;
  Example batch{at::empty({count, block}, at::kLong), at::empty({count, block}, at::kLong)};
  auto* input = batch.input->data_ptr<std::int64_t>();
  auto* target = batch.target->data_ptr<std::int64_t>();
  std::string buffer = state_->buffer();
  State::Touched touched;
  bool waits = false;
  for (std::int64_t row = 0; row < count; ++row) {
    const AwaitedRead reading(buffer.size());
    state_->copy(indices[static_cast<std::size_t>(row)], buffer, input + row * block, target + row * block,
                 touched);
    if (!waits && (waits = reading.has_waited())) {
      for (const std::int64_t later : indices.subspan(static_cast<std::size_t>(row) + 1)) {
        if (later >= 0 && later < size()) state_->will_read(later);
      }
    }
  }
  for (const ShardFile* shard : touched) shard->check_unchanged();
  return batch;
}

}  // namespace trireme::data
