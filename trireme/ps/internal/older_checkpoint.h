#pragma once
// Structures in checkpoints of version 2, before sparse tables and delay compensation. Values.

#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "trireme/ps/checkpoint_file.h"
#include "trireme/wire/fields.h"

namespace trireme::ps {

struct OlderTableSpec : TableSpec {
  static constexpr bool kListsSomeFields = true;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.id, self.name, self.kind, self.num_elements, self.chunk_elements, self.rows,
                    self.staleness, self.apply_at, self.optimizer, self.initial_range, self.seed,
                    self.compression);
  }
};

struct OlderManifest {
  static constexpr bool kListsSomeFields = true;
  CheckpointManifest rest;
  std::vector<OlderTableSpec> tables;

  CheckpointManifest now() const {
    CheckpointManifest manifest = rest;
    manifest.tables.assign(tables.begin(), tables.end());
    return manifest;
  }
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.rest.number, self.rest.num_partitions, self.rest.is_at_one_clock, self.tables,
                    self.rest.parts);
  }
};

struct OlderPartHeader {
  static constexpr bool kListsSomeFields = true;
  PartHeader rest;
  std::vector<OlderTableSpec> tables;

  PartHeader now() const {
    PartHeader header = rest;
    header.tables.assign(tables.begin(), tables.end());
    return header;
  }
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.rest.partition, self.rest.epoch, self.rest.version, self.rest.clock, self.tables,
                    self.rest.chunks);
  }
};

/// Converts an `Older` to a `Now`; empty where `bytes` are malformed.
template <class Now, class Older>
std::optional<Now> decode_older(std::span<const std::byte> bytes) {
  const auto older = wire::decode<Older>(bytes);
  return older ? std::optional(older->now()) : std::nullopt;
}

}  // namespace trireme::ps
