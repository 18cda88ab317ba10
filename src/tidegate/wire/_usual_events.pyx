# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Encodes and decodes usual events; each function returns None for any other, which ``event_codec`` decides.

So it raises nothing and refuses nothing by itself, and its results are those of ``event_codec``, byte for
byte and value for value. It handles what most events are: small application properties of plain types, and a
body of one data section. Every read is bounded by ``end``, and every write by the size counted before.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_CheckExact, PyDict_Next, PyDict_SetItem, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact, PyFloat_FromDouble
from cpython.long cimport PyLong_CheckExact, PyLong_FromLongLong
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from tidegate.model.events import EventContents, ReceivedEvent

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1
    int PyUnicode_CheckExact(object value)

cdef uint32_t DATA_8 = 0x005375A0
cdef uint32_t DATA_32 = 0x005375B0
cdef const char *KEY_HEAD = b"\x00\x53\x72\xc1\x00\x02\xa3\x13x-opt-partition-key\xa1\x00"
cdef Py_ssize_t KEY_BYTES = 29
"""Annotations that hold only a partition key, up to the key; the bytes at 4 and 28 are sizes."""


cdef inline uint32_t read_u32(const uint8_t *at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline uint64_t read_u64(const uint8_t *at) noexcept nogil:
    return (<uint64_t>read_u32(at) << 32) | read_u32(at + 4)


cdef inline void write_big(uint8_t *at, uint64_t value, int count) noexcept nogil:
    cdef int index
    for index in range(count):
        at[index] = <uint8_t>(value >> (8 * (count - 1 - index)))


# --- encoding ------------------------------------------------------------------------------------------

cdef Py_ssize_t integer_bytes(long long value) noexcept:
    if -128 <= value < 128:
        return 2
    return 5 if -2147483648 <= value < 2147483648 else 9


def encode_usual(bytes prefix not None, object properties, object body):
    """The encoded event, after ``prefix``; None for keys of 256 bytes or more, and types that are not plain."""
    if not PyBytes_CheckExact(body) or not PyDict_CheckExact(properties):
        return None
    cdef Py_ssize_t prefix_bytes = PyBytes_GET_SIZE(prefix)
    cdef Py_ssize_t entries = 0, length, count = PyDict_Size(properties), position = 0
    cdef Py_ssize_t body_bytes = PyBytes_GET_SIZE(body), section = 0
    cdef PyObject *key_pointer
    cdef PyObject *value_pointer
    cdef object value
    cdef int overflow = 0
    cdef long long number
    cdef double real
    cdef const char *text
    cdef uint64_t bits
    if body_bytes >= 0x7FFFFFFF:
        return None
    try:
        while PyDict_Next(properties, &position, &key_pointer, &value_pointer):
            value = <object>key_pointer
            if not PyUnicode_CheckExact(value):
                return None
            PyUnicode_AsUTF8AndSize(value, &length)
            if length > 255:
                return None
            entries += 2 + length
            value = <object>value_pointer
            if PyUnicode_CheckExact(value):
                PyUnicode_AsUTF8AndSize(value, &length)
                entries += length + (2 if length < 256 else 5)
            elif value is None or value is True or value is False:
                entries += 1
            elif PyLong_CheckExact(value):
                number = PyLong_AsLongLongAndOverflow(value, &overflow)
                if overflow:
                    return None
                entries += integer_bytes(number)
            elif PyFloat_CheckExact(value):
                entries += 9
            else:
                return None
            if entries > 0x7FFFFFFF:
                return None
    except UnicodeEncodeError:
        return None
    cdef bint is_small = entries < 255
    if count:
        section = entries + (6 if is_small else 12)
    encoded = PyBytes_FromStringAndSize(
        NULL, prefix_bytes + section + body_bytes + (5 if body_bytes < 256 else 8)
    )
    cdef uint8_t *at = <uint8_t *>PyBytes_AS_STRING(encoded)
    memcpy(at, PyBytes_AS_STRING(prefix), prefix_bytes)
    at += prefix_bytes
    if count:
        write_big(at, 0x005374C1 if is_small else 0x005374D1, 4)
        at += 4
        if is_small:
            at[0], at[1] = <uint8_t>(entries + 1), <uint8_t>(2 * count)
            at += 2
        else:
            write_big(at, entries + 4, 4)
            write_big(at + 4, 2 * count, 4)
            at += 8
        position = 0
        while PyDict_Next(properties, &position, &key_pointer, &value_pointer):
            text = PyUnicode_AsUTF8AndSize(<object>key_pointer, &length)
            at[0], at[1] = 0xA1, <uint8_t>length
            memcpy(at + 2, text, length)
            at += 2 + length
            value = <object>value_pointer
            if PyUnicode_CheckExact(value):
                text = PyUnicode_AsUTF8AndSize(value, &length)
                if length < 256:
                    at[0], at[1] = 0xA1, <uint8_t>length
                    at += 2
                else:
                    at[0] = 0xB1
                    write_big(at + 1, length, 4)
                    at += 5
                memcpy(at, text, length)
                at += length
            elif value is None or value is True or value is False:
                at[0] = 0x40 if value is None else 0x41 if value is True else 0x42
                at += 1
            elif PyLong_CheckExact(value):
                number = PyLong_AsLongLongAndOverflow(value, &overflow)
                length = integer_bytes(number)
                at[0] = 0x54 if length == 2 else 0x71 if length == 5 else 0x81
                write_big(at + 1, <uint64_t>number, <int>length - 1)
                at += length
            else:
                real = PyFloat_AS_DOUBLE(value)
                memcpy(&bits, &real, 8)
                at[0] = 0x82
                write_big(at + 1, bits, 8)
                at += 9
    if body_bytes < 256:
        write_big(at, DATA_8, 4)
        at[4] = <uint8_t>body_bytes
        at += 5
    else:
        write_big(at, DATA_32, 4)
        write_big(at + 4, body_bytes, 4)
        at += 8
    memcpy(at, PyBytes_AS_STRING(body), body_bytes)
    return encoded


# --- decoding ------------------------------------------------------------------------------------------

cdef int64_t data_start(const uint8_t *data, int64_t at, int64_t end) noexcept nogil:
    """Where the content of the only data section, from ``at`` to the end, starts; -1 for anything else."""
    if end - at < 5:
        return -1
    cdef uint32_t word = read_u32(data + at)
    if word == DATA_8:
        return at + 5 if at + 5 + data[at + 4] == end else -1
    if word == DATA_32 and end - at >= 8 and at + 8 + <int64_t>read_u32(data + at + 4) == end:
        return at + 8
    return -1


def body_of_usual(object encoded):
    """The body of an event whose other sections have the usual encodings."""
    if not PyBytes_CheckExact(encoded):
        return None
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(encoded)
    cdef int64_t at = 0, start, end = PyBytes_GET_SIZE(encoded)  # a size has 32 bits, all of which may be set
    while end - at >= 8:
        if data[at] or data[at + 1] != 0x53 or not 0x70 <= data[at + 2] <= 0x74 or data[at + 3] & 0xC0 != 0xC0:
            break
        at += 8 + <int64_t>read_u32(data + at + 4) if data[at + 3] & 0x10 else 5 + data[at + 4]
    if at > end:
        return None
    start = data_start(data, at, end)
    return None if start < 0 else PyBytes_FromStringAndSize(<const char *>data + start, end - start)


def decode_usual(object encoded):
    """The contents of an event that has at most a partition key, application properties in a small map, and
    a body."""
    if not PyBytes_CheckExact(encoded):
        return None
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(encoded)
    cdef Py_ssize_t at = 0, value_at, properties_end, start, end = PyBytes_GET_SIZE(encoded)
    cdef uint8_t code
    cdef uint64_t bits
    cdef double real
    partition_key = None
    if end >= KEY_BYTES and memcmp(data, KEY_HEAD, 4) == 0 and memcmp(data + 5, KEY_HEAD + 5, KEY_BYTES - 6) == 0:
        at = KEY_BYTES + data[KEY_BYTES - 1]
        if at != 5 + data[4] or at > end:
            return None
        try:
            partition_key = PyUnicode_DecodeUTF8(<const char *>data + KEY_BYTES, at - KEY_BYTES, NULL)
        except UnicodeDecodeError:
            return None
    if end - at < 6:
        return None
    properties_end = at
    if read_u32(data + at) == 0x005374C1:
        properties_end = at + 5 + data[at + 4]
        at += 6
    start = data_start(data, properties_end, end) if properties_end <= end else -1
    if start < 0:
        return None
    properties = {}
    try:
        while at < properties_end:
            # A key and its value's constructor, at least; the data section gives more bytes to look at.
            if data[at] != 0xA1:
                return None
            value_at = at + 2 + data[at + 1]
            if value_at >= properties_end:
                return None
            key = PyUnicode_DecodeUTF8(<const char *>data + at + 2, data[at + 1], NULL)
            code = data[value_at]
            at = value_at + 1
            if code == 0xA1:
                at += 1 + data[at]
                if at > properties_end:
                    return None
                value = PyUnicode_DecodeUTF8(<const char *>data + value_at + 2, at - value_at - 2, NULL)
            elif code == 0x54 or code == 0x55:
                value = PyLong_FromLongLong(<int8_t>data[at])
                at += 1
            elif code == 0x71:
                if at + 4 > properties_end:
                    return None
                value = PyLong_FromLongLong(<int32_t>read_u32(data + at))
                at += 4
            elif code == 0x81 or code == 0x82:
                if at + 8 > properties_end:
                    return None
                bits = read_u64(data + at)
                at += 8
                if code == 0x81:
                    value = PyLong_FromLongLong(<int64_t>bits)
                else:
                    memcpy(&real, &bits, 8)
                    value = PyFloat_FromDouble(real)
            elif code == 0x41 or code == 0x42:
                value = code == 0x41
            elif code == 0x40:
                value = None
            else:
                return None
            PyDict_SetItem(properties, key, value)
    except UnicodeDecodeError:
        return None
    if at != properties_end:
        return None
    return new_contents(
        PyBytes_FromStringAndSize(<const char *>data + start, end - start), properties, partition_key
    )


# --- values with slots -----------------------------------------------------------------------------------
#
# They are not tracked by the garbage collector, which would visit each several times while a batch is in
# hand: what they hold are plain values and functions of modules, so they are in no cycle.

cdef extern from *:
    """
    #include "structmember.h"
    static Py_ssize_t slot_of(PyObject *type, PyObject *name) {
        PyObject *found = PyDict_GetItemWithError(((PyTypeObject *)type)->tp_dict, name);
        if (found == NULL || !Py_IS_TYPE(found, &PyMemberDescr_Type)
            || ((PyMemberDescrObject *)found)->d_member->type != T_OBJECT_EX) {
            PyErr_Format(PyExc_TypeError, "%R has no slot %R", type, name);
            return -1;
        }
        return ((PyMemberDescrObject *)found)->d_member->offset;
    }
    static void set_slot(PyObject *value, Py_ssize_t slot, PyObject *content) {
        Py_INCREF(content);
        *(PyObject **)((char *)value + slot) = content;
    }
    """
    Py_ssize_t slot_of(object type, object name) except -1
    void set_slot(object value, Py_ssize_t slot, object content)
    object PyType_GenericAlloc(type kind, Py_ssize_t count)
    void PyObject_GC_UnTrack(object value)

cdef type CONTENTS = EventContents, RECEIVED = ReceivedEvent
cdef Py_ssize_t BODY = slot_of(CONTENTS, "body"), PROPERTIES = slot_of(CONTENTS, "properties")
cdef Py_ssize_t PARTITION_KEY = slot_of(CONTENTS, "partition_key")
cdef Py_ssize_t CONTENT_TYPE = slot_of(CONTENTS, "content_type"), MESSAGE_ID = slot_of(CONTENTS, "message_id")
cdef Py_ssize_t CORRELATION_ID = slot_of(CONTENTS, "correlation_id")
cdef Py_ssize_t BODY_VALUE = slot_of(CONTENTS, "body_value")


cdef object new_contents(object body, object properties, object partition_key):
    """As the constructor makes them: each of its fields is set once, here."""
    contents = PyType_GenericAlloc(CONTENTS, 0)
    set_slot(contents, BODY, body)
    set_slot(contents, PROPERTIES, properties)
    set_slot(contents, PARTITION_KEY, partition_key)
    set_slot(contents, CONTENT_TYPE, None)
    set_slot(contents, MESSAGE_ID, None)
    set_slot(contents, CORRELATION_ID, None)
    set_slot(contents, BODY_VALUE, None)
    PyObject_GC_UnTrack(contents)
    return contents


cdef tuple RECEIVED_SLOTS = tuple(
    slot_of(RECEIVED, name) for name in (
        *("partition_id", "sequence_number", "offset", "enqueued_time_ms"),
        *("_encoded", "_decode", "_decode_body", "_contents", "_body"),
    )
)


def received_events(
    str partition_id, object numbers, object offsets, object times_ms, object messages, object decode, object decode_body
):
    """The events of columns of equal length, as ``ReceivedEvent`` makes them."""
    cdef Py_ssize_t slots[9]
    cdef Py_ssize_t index
    for index in range(9):
        slots[index] = RECEIVED_SLOTS[index]
    events = []
    for number, offset, time_ms, message in zip(numbers, offsets, times_ms, messages, strict=True):
        event = PyType_GenericAlloc(RECEIVED, 0)
        set_slot(event, slots[0], partition_id)
        set_slot(event, slots[1], number)
        set_slot(event, slots[2], offset)
        set_slot(event, slots[3], time_ms)
        set_slot(event, slots[4], message)
        set_slot(event, slots[5], decode)
        set_slot(event, slots[6], decode_body)
        set_slot(event, slots[7], None)
        set_slot(event, slots[8], None)
        PyObject_GC_UnTrack(event)
        events.append(event)
    return events
