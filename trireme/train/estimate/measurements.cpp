#include "trireme/train/estimate/measurements.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "trireme/base/bounded_file.h"
#include "trireme/base/bounded_json.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/mesh_axes.h"
#include "trireme/base/num_fields.h"
#include "trireme/train/config/internal/config_keys.h"

namespace trireme::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 4;  ///< of the file
constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;
constexpr double kLargest = 1e15;  ///< of seconds, bytes, elements; and of the bytes of all parameters

// One list of each struct's fields, for writing and for reading: `visit(name, field)`.

template <class Visit>
void each_field(CostLine& line, const Visit& visit) {
  static_assert(num_fields<CostLine>() == 2);
  visit("fixed_s", line.fixed_s);
  visit("unit_s", line.unit_s);
}

template <class Visit>
void each_field(CodecCost& cost, const Visit& visit) {
  static_assert(num_fields<CodecCost>() == 2);
  visit("codec", cost.codec);
  visit("all_reduce", cost.all_reduce);
}

template <class Visit>
void each_field(ExchangeCosts& costs, const Visit& visit) {
  static_assert(num_fields<ExchangeCosts>() == 7);
  visit("ranks", costs.ranks);
  visit("all_reduce", costs.all_reduce);
  visit("reduce_scatter", costs.reduce_scatter);
  visit("all_gather", costs.all_gather);
  visit("send", costs.send);
  visit("share_of_core", costs.share_of_core);
  visit("codecs", costs.codecs);
}

template <class Visit>
void each_field(plan::Recomputable& kept, const Visit& visit) {
  static_assert(num_fields<plan::Recomputable>() == 5);
  visit("forward_s", kept.forward_s);
  visit("inner_bytes", kept.inner_bytes);
  visit("output_bytes", kept.output_bytes);
  visit("saves_input", kept.saves_input);
  visit("saves_output", kept.saves_output);
}

template <class Visit>
void each_field(plan::LayerMemory& memory, const Visit& visit) {
  static_assert(num_fields<plan::LayerMemory>() == 7);
  visit("kept", memory.kept);
  visit("forward_bytes", memory.forward_bytes);
  visit("backward_bytes", memory.backward_bytes);
  visit("gradient_bytes", memory.gradient_bytes);
  visit("largest_gradient_bytes", memory.largest_gradient_bytes);
  visit("input_backward_bytes", memory.input_backward_bytes);
  visit("for_weights_bytes", memory.for_weights_bytes);
}

template <class Visit>
void each_field(ParameterUse& parameter, const Visit& visit) {
  static_assert(num_fields<ParameterUse>() == 4);
  visit("name", parameter.name);
  visit("bytes", parameter.bytes);
  visit("numel", parameter.numel);
  visit("is_rounded", parameter.is_rounded);
}

template <class Visit>
void each_field(LayerTime& time, const Visit& visit) {
  static_assert(num_fields<LayerTime>() == 6);
  visit("forward_s", time.forward_s);
  visit("backward_s", time.backward_s);
  visit("backward_input_s", time.backward_input_s);
  visit("backward_weight_s", time.backward_weight_s);
  visit("bare_forward_s", time.bare_forward_s);
  visit("recomputed_backward_s", time.recomputed_backward_s);
}

template <class Visit>
void each_field(LayerUse& layer, const Visit& visit) {
  static_assert(num_fields<LayerUse>() == 4);
  visit("name", layer.name);
  visit("memory", layer.memory);
  visit("parameters", layer.parameters);
  visit("time", layer.time);
}

template <class Visit>
void each_field(ModelUse& model, const Visit& visit) {
  static_assert(num_fields<ModelUse>() == 4);
  visit("samples", model.samples);
  visit("input_bytes", model.input_bytes);
  visit("target_bytes", model.target_bytes);
  visit("layers", model.layers);
}

template <class Visit>
void each_field(Measurements& measured, const Visit& visit) {
  static_assert(num_fields<Measurements>() == 13);
  visit("processor", measured.processor);
  visit("threads", measured.threads);
  visit("model", measured.model);
  visit("exchanges", measured.exchanges);
  visit("within_host", measured.within_host);
  visit("ranks_of_host", measured.ranks_of_host);
  visit("update", measured.update);
  visit("update_in_files", measured.update_in_files);
  visit("overhead", measured.overhead);
  visit("base_bytes", measured.base_bytes);
  visit("least_samples", measured.least_samples);
  visit("costs", measured.costs);
}

template <class Value>
concept HasFields = requires(Value& value) {
  each_field(value, [](const char*, auto&) {});
};

template <class Value>
Json to_json(Value& value) {
  if constexpr (HasFields<Value>) {
    Json json = Json::object();
    each_field(value, [&](const char* name, auto& field) { json[name] = to_json(field); });
    return json;
  } else if constexpr (requires { typename Value::allocator_type; } && !std::is_same_v<Value, std::string>) {
    Json json = Json::array();
    for (auto& each : value) json.push_back(to_json(each));
    return json;
  } else {
    return value;
  }
}

/// Throws DataError with the place.
template <class Value>
void from_json(const Json& json, Value& value, const std::string& place) {
  const auto demand = [&](bool ok, const char* expected) {
    if (!ok) throw DataError(text(place, ": expected ", expected, ", found ", json.type_name()));
  };
  if constexpr (HasFields<Value>) {
    demand(json.is_object(), "an object");
    each_field(value, [&](const char* name, auto& field) {
      const auto found = json.find(name);
      if (found == json.end()) throw DataError(text(place, ": the field '", name, "' is missing"));
      from_json(*found, field, text(place, ".", name));
    });
  } else if constexpr (std::is_same_v<Value, std::string>) {
    demand(json.is_string(), "a text");
    value = json.get<std::string>();
  } else if constexpr (std::is_same_v<Value, bool>) {
    demand(json.is_boolean(), "true or false");
    value = json.get<bool>();
  } else if constexpr (std::is_arithmetic_v<Value>) {
    demand(json.is_number(), "a number");
    constexpr bool kIsWhole = std::is_integral_v<Value>;
    constexpr double kMost = std::min(kLargest, static_cast<double>(std::numeric_limits<Value>::max()));
    const auto number = json.get<double>();
    if (!(number >= 0 && number <= kMost) || (kIsWhole && !json.is_number_integer()))
      throw DataError(text(place, ": expected a ", kIsWhole ? "whole " : "", "number from 0 to ", kMost,
                           ", found ", json.dump()));
    value = json.get<Value>();
  } else {
    demand(json.is_array(), "a list");
    for (const Json& each : json) {
      value.emplace_back();
      from_json(each, value.back(), text(place, "[", value.size() - 1, "]"));
    }
  }
}

/// Interpolates between two sizes by samples. Outside it extrapolates, but not below 0.
class Between {
 public:
  Between(const ModelUse& small, const ModelUse& large, std::int64_t samples)
      : small_(small),
        large_(large),
        share_(small.samples == large.samples ? 0.0
                                              : static_cast<double>(samples - small.samples) /
                                                    static_cast<double>(large.samples - small.samples)),
        samples_(samples) {}

  ModelUse model() const {
    ModelUse model = share_ < 0.5 ? small_ : large_;
    model.samples = samples_;
    model.input_bytes = of(small_.input_bytes, large_.input_bytes);
    model.target_bytes = of(small_.target_bytes, large_.target_bytes);
    for (std::size_t i = 0; i < model.layers.size(); ++i)
      put(model.layers[i], small_.layers.at(i), large_.layers.at(i));
    return model;
  }

 private:
  double of(double small, double large) const { return std::max(0.0, small + share_ * (large - small)); }

  void put(LayerUse& layer, const LayerUse& small, const LayerUse& large) const {
    const auto set = [&](double& field, double a, double b) { field = of(a, b); };
    const plan::LayerMemory &a = small.memory, &b = large.memory;
    plan::LayerMemory& m = layer.memory;
    set(m.kept.forward_s, a.kept.forward_s, b.kept.forward_s);
    set(m.kept.inner_bytes, a.kept.inner_bytes, b.kept.inner_bytes);
    set(m.kept.output_bytes, a.kept.output_bytes, b.kept.output_bytes);
    set(m.forward_bytes, a.forward_bytes, b.forward_bytes);
    set(m.backward_bytes, a.backward_bytes, b.backward_bytes);
    set(m.input_backward_bytes, a.input_backward_bytes, b.input_backward_bytes);
    set(m.for_weights_bytes, a.for_weights_bytes, b.for_weights_bytes);
    LayerTime& t = layer.time;
    set(t.forward_s, small.time.forward_s, large.time.forward_s);
    set(t.backward_s, small.time.backward_s, large.time.backward_s);
    set(t.backward_input_s, small.time.backward_input_s, large.time.backward_input_s);
    set(t.backward_weight_s, small.time.backward_weight_s, large.time.backward_weight_s);
    set(t.bare_forward_s, small.time.bare_forward_s, large.time.bare_forward_s);
    set(t.recomputed_backward_s, small.time.recomputed_backward_s, large.time.recomputed_backward_s);
  }

  const ModelUse &small_, &large_;
  const double share_;
  const std::int64_t samples_;
};

/// The same model with no samples: the second point of a line if one size was measured.
ModelUse without_samples(const ModelUse& model) {
  ModelUse none{.layers = {}, .samples = 0};
  for (const LayerUse& layer : model.layers)
    none.layers.push_back({.name = layer.name, .memory = {}, .parameters = layer.parameters});
  return none;
}

/// Bytes and elements of all parameters.
double size_of_parameters(const ModelUse& model) {
  double size = 0;
  for (const LayerUse& layer : model.layers) {
    for (const ParameterUse& each : layer.parameters)
      size += static_cast<double>(each.bytes) + static_cast<double>(each.numel);
  }
  return size;
}

/// Checks for rising samples, and in each the same layers and the loss. Throws DataError with the place.
void check_costs(const std::vector<ModelUse>& costs, const std::string& place) {
  if (costs.empty()) throw DataError(text(place, ": expected at least one size of micro-batch"));
  std::int64_t before = 0;
  for (const ModelUse& each : costs) {
    if (each.samples <= before)
      throw DataError(text(place, ": expected rising samples, found ", each.samples, " after ", before));
    const std::size_t layers = costs.front().layers.size();
    if (each.layers.size() < 2 || each.layers.size() != layers)
      throw DataError(text(place, ": expected the same layers and a loss for each size, found ",
                           each.layers.size(), " for ", each.samples, " samples and ", layers, " for ",
                           costs.front().samples));
    if (size_of_parameters(each) > kLargest)
      throw DataError(text(place, ": expected parameters of at most ", kLargest, " bytes, found more"));
    before = each.samples;
  }
}

/// A planner makes estimates for each of them. Throws DataError with the place.
void check_codecs(const ExchangeCosts& costs, const std::string& place) {
  constexpr std::size_t kMostCodecs = 32;
  if (costs.codecs.size() > kMostCodecs)
    throw DataError(text(place, ".codecs: expected at most ", kMostCodecs, ", found ", costs.codecs.size()));
}

bool is_shipped(const std::string& name) {
  static const std::set<std::string> kNames = [] {
    std::set<std::string> names;
    for (const ConfigKey& key : config_key_table()) names.insert(key.name);
    return names;
  }();
  return kNames.contains(name);
}

/// Keys of the axes whose ranks hold parts of the same layers or sequences. What these ranks exchange is part
/// of the time of layers.
std::vector<std::string> keys_of_parts() {
  std::vector<std::string> keys;
  for (const AxisRow& row : mesh_axes()) {
    if (!row.is_rest && !row.shares(Shared::kStages)) keys.emplace_back(row.key);
  }
  return keys;
}

std::int64_t ranks_of_parts(const Measurements& form) {
  std::int64_t ranks = 1;
  for (const std::string& name : keys_of_parts()) {
    const std::string key = name + " = ";
    const std::size_t at = form.model.find(key);
    if (at != std::string::npos)
      ranks *= std::max(1L, std::strtol(form.model.c_str() + at + key.size(), nullptr, 10));
  }
  return ranks;
}

/// Keys of a program's own types count, as their meaning is unknown here.
bool decides_layers(const ConfigKey& key) {
  constexpr std::array kTables = {"data.", "model.", "objective."};
  constexpr std::array kOthers = {"optimizer.name",    "train.precision",     "train.device",
                                  "train.convolution", "train.memory_format", "comm.torch_threads",
                                  "comm.backend",      "parallel.sequence"};
  static const std::vector<std::string> kParts = keys_of_parts();
  if (!is_shipped(key.name)) return true;
  const auto begins = [&](const char* table) { return key.name.starts_with(table); };
  return (key.on_resume == OnResume::kStays && std::ranges::any_of(kTables, begins)) ||
         std::ranges::find(kOthers, key.name) != kOthers.end() ||
         std::ranges::find(kParts, key.name) != kParts.end();
}

}  // namespace

CostLine line_through(double small, double small_s, double large, double large_s) {
  const double unit_s = std::max(0.0, (large_s - small_s) / (large - small));
  return {.fixed_s = std::max(0.0, small_s - unit_s * small), .unit_s = unit_s};
}

const CostLine& cost_of_update(const Measurements& measured, bool is_in_files) {
  return is_in_files && measured.update_in_files.unit_s > 0 ? measured.update_in_files : measured.update;
}

std::string model_key(const ParallelPlan& plan) {
  std::string values;
  for (const ConfigKey& key : config_key_table(plan.config())) {
    if (decides_layers(key)) values += text(key.name, " = ", to_toml(key.get(plan.config())), "\n");
  }
  return values;
}

ModelUse model_at(const Measurements& measured, std::int64_t samples) {
  const std::vector<ModelUse>& costs = measured.costs;
  require(!costs.empty(), "no layers were measured");
  const auto exact = std::ranges::find(costs, samples, &ModelUse::samples);
  if (exact != costs.end()) return *exact;
  if (costs.size() == 1) {
    const ModelUse none = without_samples(costs.front());
    return Between(none, costs.front(), samples).model();
  }
  auto above = std::ranges::find_if(costs, [&](const ModelUse& each) { return each.samples > samples; });
  above = std::clamp(above, costs.begin() + 1, costs.end() - 1);
  return Between(*(above - 1), *above, samples).model();
}

const Measurements& form_of(const MeasuredForms& forms, const ParallelPlan& plan) {
  require(!forms.empty(), "no costs were measured");
  const auto found = std::ranges::find(forms, model_key(plan), &Measurements::model);
  return found == forms.end() ? forms.front() : *found;
}

MeasuredForms over_links(MeasuredForms forms, const LinkLevels& links, int world_size) {
  const bool is_one_host = world_size <= links.ranks_of_host;
  require(is_one_host || world_size % links.ranks_of_host == 0, world_size, " ranks on hosts of ",
          links.ranks_of_host, "; expected whole hosts");
  const LinkFacts& slowest = is_one_host ? links.within : links.between;
  const bool had_any = !forms.empty();
  std::erase_if(forms, [&](const Measurements& form) {
    const std::int64_t ranks = ranks_of_parts(form);
    return ranks > 1 && (is_one_host || ranks > links.ranks_of_host);
  });
  require(
      !had_any || !forms.empty(), "the exchanges of the keys ", join(keys_of_parts(), ", "),
      " are part of the measured layers, so that other links cannot replace them; leave these keys out, or "
      "measure on those hosts");
  for (Measurements& form : forms) {
    const double share_of_core = form.exchanges.share_of_core;
    form.exchanges = {.ranks = world_size,
                      .send = {.fixed_s = slowest.latency_s, .unit_s = 1 / slowest.bytes_per_s},
                      .share_of_core = share_of_core};
    form.within_host = {};
    form.ranks_of_host = is_one_host ? 0 : links.ranks_of_host;
    form.links = links;
    if (is_one_host) form.links.between = links.within;  // of more ranks than the file has
    form.links.may_share_weights = true;
  }
  return forms;
}

std::string to_text(const MeasuredForms& forms) {
  MeasuredForms copy = forms;
  const Json json = {{"version", kVersion}, {"forms", to_json(copy)}};
  return json.dump(1) + "\n";
}

MeasuredForms parse_measurements(const std::string& content, const std::string& name) {
  MeasuredForms forms;
  try {
    const Json json = parse_json<Json>(content, {.levels = 10, .values = 5'000'000});
    if (!json.is_object() || json.value("version", Json()) != Json(kVersion) || !json.contains("forms"))
      throw DataError(text("expected an object with version = ", kVersion,
                           " and forms; measure again with trireme estimate --save"));
    from_json(json["forms"], forms, "forms");
    if (forms.empty()) throw DataError("forms: expected at least one");
    for (std::size_t i = 0; i < forms.size(); ++i) {
      check_costs(forms[i].costs, text("forms[", i, "].costs"));
      check_codecs(forms[i].exchanges, text("forms[", i, "].exchanges"));
      check_codecs(forms[i].within_host, text("forms[", i, "].within_host"));
    }
  } catch (const DataError& reason) {
    throw DataError(text(name, ": ", reason.what()));
  }
  return forms;
}

void write_measurements(const std::filesystem::path& file, const MeasuredForms& forms) {
  write_file_atomic(file, to_text(forms));
}

MeasuredForms read_measurements(const std::filesystem::path& file) {
  return parse_measurements(read_bounded_file(file, kMostBytes, "file of measurements"), file.string());
}

}  // namespace trireme::train
