#include "trireme/data/internal/packed_manifest.h"

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <system_error>

#include "trireme/base/bounded_json.h"
#include "trireme/base/crc32c.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/json_whole.h"
#include "trireme/base/printable.h"

namespace trireme::data {
namespace {
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kPackedFormat = "trireme packed data";
constexpr int kManifestVersion = 1;
/// Enough for 500000 shards, each with 9 values in about 110 bytes.
constexpr JsonLimits kManifestLimits{.levels = 8, .values = 5'000'000};
constexpr std::int64_t kMostManifestBytes = std::int64_t{64} << 20;

/// Names of files and folders may not be UTF-8. Invalid bytes become U+FFFD.
std::string text_of(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace); }

/// Checksum of the text without the checksum itself.
std::uint32_t crc32c_of(Json json) {
  json.erase("crc32c");
  return crc32c(text_of(json));
}

void write(const fs::path& folder, Json json) {
  json["crc32c"] = crc32c_of(json);
  write_file_atomic(folder / kManifestFile, text_of(json) + "\n");
}

Json to_json(const PackedSplit& split) {
  Json shards = Json::array();
  for (const ShardSummary& shard : split.shards) {
    shards.push_back({{"file", shard.file},
                      {"records", shard.records},
                      {"bytes", shard.bytes},
                      {"index_crc32c", shard.index_crc32c}});
  }
  return {{"samples", split.samples}, {"shards", std::move(shards)}};
}

ShardSummary shard_from_json(const Json& json) {
  ShardSummary shard{.file = json.at("file").get<std::string>(),
                     .records = whole_in<std::int64_t>(json.at("records")),
                     .bytes = whole_in<std::uint64_t>(json.at("bytes")),
                     .index_crc32c = whole_in<std::uint32_t>(json.at("index_crc32c"))};
  if (fs::path(shard.file).filename() != fs::path(shard.file) || !shard.file.ends_with(kShardExtension))
    throw DataError(text("'", printable(shard.file), "' is not the name of a shard in its folder"));
  if (shard.records < 1) throw DataError(text(printable(shard.file), " has ", shard.records, " records"));
  return shard;
}

PackedSplit split_from_json(const Json& json, const std::optional<TokenLayout>& tokens) {
  PackedSplit split{.samples = whole_in<std::int64_t>(json.at("samples")), .shards = {}};
  std::int64_t records = 0;
  for (const Json& shard : json.at("shards")) {
    split.shards.push_back(shard_from_json(shard));
    if (__builtin_add_overflow(records, split.shards.back().records, &records))
      throw DataError("it has more records than can be counted");
  }
  const std::int64_t per_record = tokens ? tokens->page_tokens : 1;
  if (split.samples < 1 || records != (split.samples - 1) / per_record + 1)
    throw DataError(text("a split of ", split.samples, (tokens ? " tokens has " : " samples has "), records,
                         " records in its shards"));
  return split;
}

Json to_json(const TokenLayout& tokens) {
  Json json = {{"bytes_per_token", tokens.bytes_per_token}, {"page_tokens", tokens.page_tokens}};
  if (!tokens.characters.empty()) {
    json["characters"] = Json::array();
    for (const char each : tokens.characters) json["characters"].push_back(static_cast<unsigned char>(each));
  }
  if (tokens.end_of_document) json["end_of_document"] = *tokens.end_of_document;
  return json;
}

TokenLayout tokens_from_json(const Json& json) {
  TokenLayout tokens{.bytes_per_token = whole_in<std::int64_t>(json.at("bytes_per_token")),
                     .page_tokens = whole_in<std::int64_t>(json.at("page_tokens"))};
  const std::int64_t bytes = tokens.bytes_per_token, most = std::int64_t{1} << 28;
  if ((bytes != 1 && bytes != 2 && bytes != 4) || tokens.page_tokens < 1 || tokens.page_tokens > most)
    throw DataError(text("pages of ", tokens.page_tokens, " tokens of ", bytes, " bytes are none of ours"));
  if (json.contains("characters")) {
    for (const Json& each : json["characters"])
      tokens.characters += static_cast<char>(whole_in<std::uint8_t>(each));
  }
  if (json.contains("end_of_document"))
    tokens.end_of_document = whole_in<std::int64_t>(json["end_of_document"]);
  return tokens;
}

PackedManifest manifest_from_json(const Json& json) {
  PackedManifest manifest{
      .source = json.at("packed_from").at("name").get<std::string>(),
      .source_path = json.at("packed_from").at("path").get<std::string>(),
      .input_shape = wholes_in<std::int64_t>(json.at("input_shape")),
      .num_classes = whole_in<std::int64_t>(json.at("num_classes")),
      .targets_per_sample = whole_in<std::int64_t>(json.at("targets_per_sample")),
      .held_out = json.at("held_out").get<std::string>(),
      .classes = json.at("classes").get<std::vector<std::string>>(),
      .black = json.at("black").get<double>(),
  };
  if (json.contains("tokens")) {
    manifest.tokens = tokens_from_json(json["tokens"]);
  } else {
    manifest.layout = layout_from_json(json.at("fields"));
  }
  manifest.train = split_from_json(json.at("splits").at("train"), manifest.tokens);
  if (json.at("splits").contains("test"))
    manifest.test = split_from_json(json.at("splits").at("test"), manifest.tokens);
  return manifest;
}

void check_format(const Json& json) {
  if (!json.is_object() || json.value("format", Json()) != kPackedFormat)
    throw DataError(text("it does not say that its format is '", kPackedFormat, "'"));
  if (json.value("version", Json()) != kManifestVersion) {
    throw DataError(text("it is of version ", printable(json.value("version", Json()).dump()),
                         ", this program reads version ", kManifestVersion,
                         "; use the program that wrote it, or pack the data again"));
  }
  if (json.value("crc32c", Json()) != crc32c_of(json))
    throw DataError("it is damaged: its checksum does not fit; restore it, or pack the data again");
  if (json.value("complete", Json()) != true) {
    throw DataError(
        "packing has begun there and was not completed: it is still going on, or was killed; pack the data "
        "again with "
        "--force");
  }
}

/// Throws DataError if there is none, or if it is too large.
std::shared_ptr<const ByteSource> open_manifest(const PackedFiles& files) {
  std::shared_ptr<const ByteSource> file;
  try {
    file = files.open(kManifestFile);
  } catch (const DataError& reason) {
    throw DataError(text("no ", kManifestFile, " in ", files.name(),
                         ": it is no folder of packed data; make one with: trireme data pack (",
                         reason.what(), ")"));
  }
  if (file->size() > kMostManifestBytes) {
    throw DataError(text(file->name(), " is no valid manifest of packed data: it has ", file->size(),
                         " bytes, and at most ", kMostManifestBytes, " are read"));
  }
  return file;
}

}  // namespace

std::uint64_t PackedSplit::bytes() const {
  std::uint64_t sum = 0;
  for (const ShardSummary& shard : shards) sum += shard.bytes;
  return sum;
}

const PackedSplit& PackedManifest::split(const std::string& name, const PackedFiles& files) const {
  if (name == "train") return train;
  if (name == "test" && test) return *test;
  throw DataError(text(files.name(), " has no split '", name, "'"));
}

std::string name_of_shard(const std::string& split, std::size_t number) {
  std::array<char, 24> digits{};
  std::snprintf(digits.data(), digits.size(), "-%05zu", number);
  return text(split, digits.data(), kShardExtension);
}

void write_unfinished_manifest(const fs::path& folder, const std::string& source) {
  write(folder, {{"format", kPackedFormat},
                 {"version", kManifestVersion},
                 {"complete", false},
                 {"packed_from", {{"name", source}}}});
}

void write_manifest(const fs::path& folder, const PackedManifest& manifest) {
  Json json = {{"format", kPackedFormat},
               {"version", kManifestVersion},
               {"complete", true},
               {"packed_from", {{"name", manifest.source}, {"path", manifest.source_path}}},
               {"input_shape", manifest.input_shape},
               {"num_classes", manifest.num_classes},
               {"targets_per_sample", manifest.targets_per_sample},
               {"held_out", manifest.held_out},
               {"classes", manifest.classes},
               {"black", manifest.black},
               {"splits", {{"train", to_json(manifest.train)}}}};
  manifest.tokens ? json["tokens"] = to_json(*manifest.tokens) : json["fields"] = to_json(manifest.layout);
  if (manifest.test) json["splits"]["test"] = to_json(*manifest.test);
  write(folder, std::move(json));
}

PackedManifest read_manifest(const PackedFiles& files) {
  const std::shared_ptr<const ByteSource> file = open_manifest(files);
  const std::string content = read_text(*file, 0, file->size());
  try {
    const auto json = parse_json<Json>(content, kManifestLimits);
    check_format(json);
    return manifest_from_json(json);
  } catch (const Error& problem) {
    throw DataError(text(file->name(), " is no valid manifest of packed data: ", problem.what()));
  } catch (const Json::exception& problem) {
    throw DataError(text(file->name(), " is no valid manifest of packed data: ", problem.what()));
  }
}

}  // namespace trireme::data
