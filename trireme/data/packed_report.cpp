#include "trireme/data/packed_report.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/data/internal/packed_manifest.h"
#include "trireme/data/internal/record_split.h"
#include "trireme/data/record_dataset.h"
#include "trireme/data/token_dataset.h"

namespace trireme::data {
namespace {

constexpr std::int64_t kFirstSamples = 3;
constexpr std::size_t kVerifiedAtOnce = std::size_t{1} << 20;

std::vector<std::pair<std::string, const PackedSplit*>> splits_of(const PackedManifest& manifest) {
  std::vector<std::pair<std::string, const PackedSplit*>> splits = {{"train", &manifest.train}};
  if (manifest.test) splits.emplace_back("test", &*manifest.test);
  return splits;
}

PackedContents::Split describe(const std::string& name, const PackedSplit& split) {
  PackedContents::Split described{
      .name = name, .samples = split.samples, .bytes = split.bytes(), .shards = {}};
  for (const ShardSummary& shard : split.shards)
    described.shards.push_back({.file = shard.file, .records = shard.records, .bytes = shard.bytes});
  return described;
}

std::vector<std::string> first_samples(const RecordDataset& samples) {
  std::vector<std::string> described;
  for (std::int64_t i = 0; i < std::min(kFirstSamples, samples.size()); ++i) {
    const Example sample = samples.get(i);
    described.push_back(
        text("input: ", batch::to_text(sample.input), "; target: ", batch::to_text(sample.target)));
  }
  return described;
}

/// Checks all records of one shard, also those after a damaged one.
class ShardCheck {
 public:
  ShardCheck(std::string split, std::string file, const ShardFile& shard, PackedVerdict& verdict)
      : split_(std::move(split)), file_(std::move(file)), shard_(shard), verdict_(verdict) {}

  void all() {
    for (std::int64_t next = 0; next < shard_.records();) {
      std::int64_t count = 1;
      std::size_t bytes = shard_.bytes_of(next);
      while (next + count < shard_.records() && bytes + shard_.bytes_of(next + count) <= kVerifiedAtOnce)
        bytes += shard_.bytes_of(next + count++);
      // The single damaged record is searched only if this piece is damaged.
      if (!whole(next, count, bytes)) {
        for (std::int64_t each = next; each < next + count; ++each) one(each);
      }
      next += count;
    }
  }

 private:
  bool whole(std::int64_t record, std::int64_t count, std::size_t bytes) {
    buffer_.resize(bytes);
    try {
      shard_.read(record, count, buffer_);
    } catch (const DataError&) {
      return false;
    }
    verdict_.records += count;
    verdict_.bytes += bytes;
    return true;
  }

  void one(std::int64_t record) {
    buffer_.resize(shard_.bytes_of(record));
    try {
      shard_.read(record, 1, buffer_);
      ++verdict_.records;
      verdict_.bytes += buffer_.size();
    } catch (const DataError& problem) {
      verdict_.damages.push_back({.file = file_,
                                  .problem = problem.what(),
                                  .split = split_,
                                  .sample = shard_.first() + record,
                                  .offset = shard_.offset_of(record)});
    }
  }

  const std::string split_, file_;
  const ShardFile& shard_;
  PackedVerdict& verdict_;
  std::string buffer_;
};

}  // namespace

PackedContents inspect_packed(const PackedFiles& files) {
  const PackedManifest manifest = read_manifest(files);
  PackedContents contents{.source = manifest.source,
                          .source_path = manifest.source_path,
                          .is_text = manifest.tokens.has_value(),
                          .fields = {},
                          .num_classes = manifest.num_classes,
                          .classes = manifest.classes,
                          .held_out = manifest.held_out,
                          .splits = {},
                          .first_samples = {}};
  for (const FieldLayout& field : manifest.layout.fields)
    contents.fields.push_back(
        {.part = field.is_target ? "target" : "input", .name = field.name, .kind = describe(field)});
  for (const auto& [name, split] : splits_of(manifest)) {
    contents.splits.push_back(describe(name, *split));
    if (manifest.tokens) {
      TokenDataset(files, manifest, name, {.block = std::min<std::int64_t>(1, split->samples - 1)});
    } else {
      const RecordDataset samples(files, manifest, name);
      if (name == "train") contents.first_samples = first_samples(samples);
    }
  }
  if (manifest.tokens) {
    contents.bytes_per_token = manifest.tokens->bytes_per_token;
    contents.end_of_document = manifest.tokens->end_of_document;
  }
  return contents;
}

PackedVerdict verify_packed(const PackedFiles& files,
                            const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  const PackedManifest manifest = read_manifest(files);
  PackedVerdict verdict;
  std::uint64_t total = 0, done = 0;
  for (const auto& [name, split] : splits_of(manifest)) total += split->bytes();
  for (const auto& [name, split] : splits_of(manifest)) {
    std::int64_t first = 0;
    for (const ShardSummary& summary : split->shards) {
      try {
        const ShardFile shard(files.open(summary.file), summary, first);
        ShardCheck(name, summary.file, shard, verdict).all();
      } catch (const DataError& problem) {
        verdict.damages.push_back({.file = summary.file, .problem = problem.what(), .split = name});
      }
      first += summary.records;
      done += summary.bytes;
      if (progress) progress(done, total);
    }
  }
  return verdict;
}

}  // namespace trireme::data
