#pragma once
// The format of a record of packed data: the fields of a sample one after the other, without padding, numbers
// little-endian. A field of one shape is its values. One whose dims vary has those dims, u64 each, before
// them. An encoded image is a u8 field of one dim that varies. Values; const parts are thread-safe.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/data/byte_pixels.h"
#include "trireme/data/dataset.h"

namespace trireme::data {

enum class FieldForm { kTensor, kImage };  ///< kImage: the bytes of an image file

struct FieldLayout {
  bool is_target = false;
  std::string name = {};
  FieldForm form = FieldForm::kTensor;
  at::ScalarType dtype = at::kByte;
  std::vector<std::int64_t> shape = {};          ///< of one sample; -1: varies from sample to sample
  std::optional<Normalisation> normalised = {};  ///< u8 that becomes f32 when it is read

  bool fixed() const;
  /// Of a fixed field's values.
  std::size_t bytes() const;
};

struct RecordLayout {
  std::vector<FieldLayout> fields;

  bool fixed() const;
  /// Of a record, where all fields are fixed.
  std::size_t bytes() const;
};

/// As this sample has it. Throws InvalidArgument for a type that records do not hold, or no field.
RecordLayout layout_of(const Example& sample);

/// Lets dims vary where this sample differs; whether any had to. Throws DataError, naming the sample, where
/// fields, types or numbers of dims differ.
bool widen(RecordLayout& layout, const Example& sample, std::int64_t index);

/// Appends the record of a sample that the layout fits.
void append_record(const RecordLayout& layout, const Example& sample, std::string& record);

/// Room for samples of a fixed layout; none: for one, without a batch dim.
Example empty_example(const RecordLayout& layout, std::optional<std::int64_t> rows);

/// Puts a record of `layout.bytes()` bytes into a row of an example of empty_example.
class RowWriter {
 public:
  RowWriter(const RecordLayout& layout, const Example& batch);
  void put(std::string_view record, std::size_t row) const;

 private:
  struct Part {
    char* first;          ///< of the batch
    std::size_t in, out;  ///< bytes of the record, and of a row
    std::optional<BytePixels> pixels;
  };
  std::vector<Part> parts_;
};

/// Of a layout that is not fixed; images of at most `most_pixels` are decoded, and fields that are not needed
/// are left out. Throws DataError: the record's fault.
Example parse_record(const RecordLayout& layout, std::string_view record, const Needed& needed = {},
                     std::int64_t most_pixels = kMaxPixels);

nlohmann::ordered_json to_json(const RecordLayout& layout);
/// Throws DataError: its fault.
RecordLayout layout_from_json(const nlohmann::ordered_json& json);
/// "u8 (1, 28, 28) -> f32", "image file"
std::string describe(const FieldLayout& field);

}  // namespace trireme::data
