#pragma once
// Types of gloo that c10d's public header names but never looks into. See docs/adr.

namespace gloo::transport {

class Device;
class UnboundBuffer;

}  // namespace gloo::transport
