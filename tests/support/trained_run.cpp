#include "tests/support/trained_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

/// The data of a safetensors file with only f32 tensors: length of the header, header, numbers.
std::vector<float> read_weights(const std::filesystem::path& path) {
  const std::string file = read_file(path);
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), std::min(file.size(), sizeof header_bytes));
  const std::size_t begin = sizeof header_bytes + header_bytes;
  if (begin >= file.size()) throw std::runtime_error(path.string() + " has no data");
  const auto header = nlohmann::json::parse(file.substr(sizeof header_bytes, header_bytes));
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__" && entry.at("dtype") != "F32") throw std::runtime_error(name + " is not f32");
  }
  std::vector<float> weights((file.size() - begin) / sizeof(float));
  std::memcpy(weights.data(), file.data() + begin, weights.size() * sizeof(float));
  return weights;
}

double relative(double found, double expected) { return std::abs(found - expected) / std::abs(expected); }

}  // namespace

TrainedRun read_run(const std::filesystem::path& folder) {
  const auto summary = nlohmann::json::parse(read_file(folder / "summary.json"));
  TrainedRun run{.status = summary.at("status"),
                 .world_size = summary.at("world_size"),
                 .steps = summary.at("steps"),
                 .train_loss = summary.at("train_loss"),
                 .weights_xxh3 = summary.at("weights_xxh3"),
                 .logged_steps = {},
                 .losses = {},
                 .weights = read_weights(folder / "model.safetensors")};
  for (const std::string& line : split(read_file(folder / "metrics.jsonl"), '\n')) {
    if (line.empty()) continue;
    const auto record = nlohmann::json::parse(line);
    if (record.at("event") != "step") continue;
    run.logged_steps.push_back(record.at("step"));
    run.losses.push_back(record.at("loss"));
  }
  return run;
}

Distance distance(const TrainedRun& found, const TrainedRun& expected) {
  if (found.logged_steps != expected.logged_steps || found.weights.size() != expected.weights.size()) {
    throw std::runtime_error(text("runs of ", found.logged_steps.size(), " and ",
                                  expected.logged_steps.size(), " logged steps, of ", found.weights.size(),
                                  " and ", expected.weights.size(), " weights cannot be compared"));
  }
  Distance result{.loss = relative(found.train_loss, expected.train_loss)};
  for (std::size_t i = 0; i < found.losses.size(); ++i) {
    result.loss = std::max(result.loss, relative(found.losses[i], expected.losses[i]));
  }
  double differences = 0, weights = 0;
  for (std::size_t i = 0; i < found.weights.size(); ++i) {
    const double difference = double{found.weights[i]} - expected.weights[i];
    result.weight = std::max(result.weight, std::abs(difference));
    differences += difference * difference;
    weights += double{expected.weights[i]} * expected.weights[i];
  }
  result.norm = std::sqrt(differences / weights);
  return result;
}

}  // namespace trireme::test
