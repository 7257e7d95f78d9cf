#include "cli/data.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/printable.h"
#include "trireme/data/pack.h"
#include "trireme/data/pack_text.h"
#include "trireme/data/packed_report.h"
#include "trireme/train/config/registry.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

/// An empty file: a configuration of defaults only.
constexpr const char* kNoConfiguration = "/dev/null";

/// One line on a terminal, redrawn at each percent.
class Progress {
 public:
  void show(const std::string& what, std::int64_t done, std::int64_t of) {
    const std::int64_t percent = of == 0 ? 100 : 100 * done / of;
    if (!draws_ || (what == what_ && percent == percent_)) return;
    what_ = what;
    percent_ = percent;
    std::fprintf(stderr, "\r\033[K%s: %lld %%", what.c_str(), static_cast<long long>(percent));
  }
  ~Progress() {
    if (!what_.empty()) std::fprintf(stderr, "\r\033[K");
  }
  Progress() = default;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  const bool draws_ = ::isatty(STDERR_FILENO) == 1;
  std::string what_;
  std::int64_t percent_ = -1;
};

bool is_name_of_data(const Home& home, const std::string& name) {
  std::vector<std::string> names = data::data_names();
  if (home.registry) {
    for (const auto& part : home.registry->own().datasets) names.push_back(part.name());
  }
  return std::find(names.begin(), names.end(), name) != names.end();
}

data::PackedSize pack_shipped(const data::DataOptions& from, const data::PackOptions& options) {
  const Log log;
  const data::Packable samples = data::packable(from, log);
  for (const std::string& note : samples.source.notes) log.warning(note);
  return data::pack(samples, options);
}

data::PackedSize pack_configured(const train::RunConfig& config, const data::PackOptions& options) {
  const data::DataOptions& from = config.data;
  if (from.name == "text") {
    require(!from.path.empty(), "data.name = \"text\" needs data.path, the file with the text");
    return data::pack_text({.path = from.path}, options);
  }
  require(from.name != "packed", from.path,
          " is packed already: pack what it was packed from, or copy the folder");
  const std::vector<std::string> shipped = data::data_names();
  if (std::find(shipped.begin(), shipped.end(), from.name) != shipped.end())
    return pack_shipped(train::data_options(config), options);
  return data::pack({.source = train::open_data(config), .path = from.path}, options);
}

data::PackedSize pack_file(const DataArguments& arguments, const data::PackOptions& options) {
  require(arguments.overrides.empty(), "--set is for a configuration or a data set's name, and ",
          arguments.from, " is a file of text");
  data::TextSource source{
      .path = arguments.from, .validation = arguments.validation, .vocabulary = arguments.vocabulary};
  if (!arguments.jsonl.empty()) {
    source.form = data::TextForm::kJsonLines;
    source.field = arguments.jsonl;
  } else if (!arguments.tokens.empty()) {
    source.form = arguments.tokens == "u16" ? data::TextForm::kU16 : data::TextForm::kU32;
  }
  return data::pack_text(source, options);
}

data::PackedSize pack_any(const Home& home, const DataArguments& arguments,
                          const data::PackOptions& options) {
  const bool is_configuration = fs::path(arguments.from).extension() == ".toml";
  if (!is_configuration && !is_name_of_data(home, arguments.from)) {
    std::error_code ignored;
    require(fs::exists(arguments.from, ignored), "there is no file '", arguments.from,
            "', and no data set of that name", suggest(arguments.from, data::data_names()));
    return pack_file(arguments, options);
  }
  require(arguments.jsonl.empty() && arguments.tokens.empty() && arguments.validation.empty(),
          "--jsonl, --tokens and --validation are for files of text, and ", arguments.from, " is none");
  std::vector<std::string> overrides = arguments.overrides;
  if (!is_configuration) overrides.insert(overrides.begin(), "data.name=" + arguments.from);
  return pack_configured(
      train::load_run_config(is_configuration ? arguments.from : kNoConfiguration, overrides, home.registry),
      options);
}

void run_pack(const Home& home, const DataArguments& arguments) {
  data::PackedSize size;
  {
    Progress progress;
    size = pack_any(home, arguments,
                    {.folder = arguments.out,
                     .shard_bytes = static_cast<std::uint64_t>(arguments.shard_mib * (1 << 20)),
                     .force = arguments.force,
                     .progress = [&](const std::string& split, std::int64_t done, std::int64_t of) {
                       progress.show("packing " + split, done, of);
                     }});
  }
  std::cout << "packed " << size.samples << (size.is_text ? " tokens" : " samples") << " of "
            << arguments.from << " into " << size.shards << (size.shards == 1 ? " shard" : " shards")
            << " of " << arguments.out << " (" << human_bytes(size.bytes) << ")\n";
}

std::string spelled(const data::PackedContents::Field& field) {
  return field.name.empty() ? field.kind : text("'", printable(field.name), "', ", field.kind);
}

void print_contents(const std::string& folder, const data::PackedContents& contents) {
  std::cout << folder << ": " << (contents.is_text ? "a text" : "samples of " + printable(contents.source))
            << (contents.source_path.empty() ? ""
                                             : ", packed from " + printable(contents.source_path, kWhole))
            << "\n";
  for (const auto& field : contents.fields) {
    std::cout << "  " << field.part << (field.part == "input" ? "   " : "  ") << spelled(field) << "\n";
  }
  if (contents.is_text) {
    std::cout << "  tokens  u" << 8 * contents.bytes_per_token << ", a vocabulary of "
              << contents.num_classes;
    if (contents.end_of_document) std::cout << ", " << *contents.end_of_document << " ends a document";
    std::cout << "\n";
  } else if (contents.num_classes > 0) {
    std::cout << "  classes " << contents.num_classes;
    if (!contents.classes.empty()) {
      const std::size_t some = std::min<std::size_t>(contents.classes.size(), 8);
      std::vector<std::string> names;
      for (std::size_t i = 0; i < some; ++i) names.push_back(printable(contents.classes[i]));
      std::cout << ": " << join(names) << (some < contents.classes.size() ? ", ..." : "");
    }
    std::cout << "\n";
  }
  for (const auto& split : contents.splits) {
    std::cout << "  " << split.name << (split.name == "train" ? "   " : "    ") << split.samples
              << (contents.is_text ? " tokens" : " samples") << ", " << human_bytes(split.bytes) << " in "
              << split.shards.size() << (split.shards.size() == 1 ? " shard" : " shards") << "\n";
  }
  for (std::size_t i = 0; i < contents.first_samples.size(); ++i)
    std::cout << "  sample " << i << "  " << printable(contents.first_samples[i], 1000) << "\n";
}

ordered_json as_json(const std::string& folder, const data::PackedContents& contents) {
  ordered_json report = {{"path", folder},
                         {"kind", contents.is_text ? "text" : "samples"},
                         {"source", contents.source},
                         {"source_path", contents.source_path},
                         {"num_classes", contents.num_classes},
                         {"held_out", contents.held_out}};
  if (contents.is_text) {
    report["bytes_per_token"] = contents.bytes_per_token;
    if (contents.end_of_document) report["end_of_document"] = *contents.end_of_document;
  } else {
    report["classes"] = contents.classes;
    report["fields"] = ordered_json::array();
    for (const auto& field : contents.fields)
      report["fields"].push_back({{"part", field.part}, {"name", field.name}, {"kind", field.kind}});
    report["first_samples"] = contents.first_samples;
  }
  for (const auto& split : contents.splits) {
    ordered_json shards = ordered_json::array();
    for (const auto& shard : split.shards)
      shards.push_back({{"file", shard.file}, {"records", shard.records}, {"bytes", shard.bytes}});
    report["splits"][split.name] = {{contents.is_text ? "tokens" : "samples", split.samples},
                                    {"bytes", split.bytes},
                                    {"shards", std::move(shards)}};
  }
  return report;
}

ordered_json as_json(const data::PackedDamage& damage) {
  ordered_json row = {{"file", damage.file}, {"split", damage.split}, {"problem", damage.problem}};
  if (damage.sample) row["sample"] = *damage.sample;
  if (damage.offset) row["offset"] = *damage.offset;
  return row;
}

/// Opens the folder or the URL as a training with these settings does.
data::PackedFiles packed_files(const Home& home, const DataArguments& arguments) {
  const train::RunConfig config =
      train::load_run_config(kNoConfiguration, arguments.overrides, home.registry);
  return {arguments.from, nullptr, {.private_redirects = config.data.private_redirects}};
}

int run_verify_packed(const data::PackedFiles& files, const DataArguments& arguments) {
  data::PackedVerdict verdict;
  {
    Progress progress;
    verdict = data::verify_packed(files, [&](std::uint64_t done, std::uint64_t of) {
      progress.show("reading", static_cast<std::int64_t>(done), static_cast<std::int64_t>(of));
    });
  }
  const bool whole = verdict.damages.empty();
  if (arguments.json) {
    ordered_json report = {{"path", arguments.from},
                           {"ok", whole},
                           {"records", verdict.records},
                           {"bytes", verdict.bytes},
                           {"damaged", ordered_json::array()}};
    for (const auto& damage : verdict.damages) report["damaged"].push_back(as_json(damage));
    std::cout << report.dump(2, ' ', false, ordered_json::error_handler_t::replace) << "\n";
  } else {
    std::cout << arguments.from << ": " << (whole ? "ok" : "DAMAGED") << ", " << verdict.records
              << " records (" << human_bytes(verdict.bytes) << ") are as they were written";
    if (!whole) std::cout << ", " << verdict.damages.size() << " problems:";
    std::cout << "\n";
    for (const auto& damage : verdict.damages) std::cout << "  " << printable_message(damage.problem) << "\n";
  }
  return whole ? kExitOk : kExitData;
}

}  // namespace

int run_data(const Home& home, const DataArguments& arguments) {
  if (arguments.action == "verify") return run_verify_packed(packed_files(home, arguments), arguments);
  if (arguments.action == "pack") {
    run_pack(home, arguments);
  } else {
    const data::PackedContents contents = data::inspect_packed(packed_files(home, arguments));
    if (arguments.json) {
      std::cout
          << as_json(arguments.from, contents).dump(2, ' ', false, ordered_json::error_handler_t::replace)
          << "\n";
    } else {
      print_contents(arguments.from, contents);
    }
  }
  return kExitOk;
}

}  // namespace trireme::cli
