// A dashboard's file by the types that one line of Grafana publishes of itself (npm @grafana/schema): `raw` has dashboards,
// panels and fields, `panel` the options of each kind of panel. There a panel's options may be anything; here they are those
// of its kind, and so are the fields' and the values of overrides. Options of transformations have no published types.
//
// A key that the types do not have is an error of the compiler's where a literal is assigned.
import type { DataQuery, DataSourceRef } from "@grafana/schema";
import type * as raw from "raw/dashboard";
import type * as bargauge from "panel/bargauge";
import type * as stat from "panel/stat";
import type * as table from "panel/table";
import type * as text from "panel/text";
import type * as timeseries from "panel/timeseries";
import type { PrometheusDataQuery } from "prometheus";

// What JSON has in place of enumerations: their values.
type Plain<T> = unknown extends T ? T
  : T extends string ? `${T}`
  : T extends number | boolean | null | undefined ? T
  : T extends Array<infer Item> ? Plain<Item>[]
  : { [Key in keyof T]: Plain<T[Key]> };

// Grafana puts a panel's default in the place of an option that is not there.
type Some<T> = unknown extends T ? T
  : T extends Array<infer Item> ? Some<Item>[]
  : T extends object ? { [Key in keyof T]?: Some<T[Key]> }
  : T;

type Nothing = { [Key in string]: never };

type Fields<Custom> = Omit<raw.FieldConfig, "custom"> & { custom?: Some<Custom> };

type Property<Custom> =
  | { [Key in keyof raw.FieldConfig]-?: { id: Key; value: raw.FieldConfig[Key] } }[Exclude<keyof raw.FieldConfig, "custom">]
  | { [Key in keyof Custom]-?: { id: `custom.${Key & string}`; value: Some<Custom[Key]> } }[keyof Custom];

type Override<Custom> = Omit<raw.FieldConfigSource["overrides"][number], "properties"> & { properties: Property<Custom>[] };

// Line 10 is the last to publish the type of Prometheus' queries here; those of 11.6 and 12.4 have the same and more.
type Query = Omit<PrometheusDataQuery, keyof DataQuery> & Omit<DataQuery, "datasource"> & { datasource: DataSourceRef };

type Panel<Kind, Options, Custom> = Omit<raw.Panel, "type" | "options" | "fieldConfig" | "targets"> & {
  type: Kind;
  options: Some<Options>;
  fieldConfig: { defaults: Fields<Custom>; overrides: Override<Custom>[] };
  targets: Query[];
};

type Panels =
  | Panel<"bargauge", bargauge.Options, Nothing>
  | Panel<"stat", stat.Options, Nothing>
  | Panel<"table", table.Options, table.FieldConfig>
  | Omit<Panel<"text", text.Options, Nothing>, "targets" | "fieldConfig">
  | Panel<"timeseries", timeseries.Options, timeseries.FieldConfig>
  | raw.RowPanel;

// Grafana's editor writes a `definition` too, and its export an empty `current` for a data source that is to be chosen.
type Variable = Omit<raw.VariableModel, "current"> & { current?: raw.VariableModel["current"] | Nothing; definition?: string };

// What marks times: the dashboard's own keys have types; the query and the texts are those of Grafana's plugin for Prometheus,
// which publishes none.
type Annotation = Omit<raw.AnnotationQuery, "target"> & {
  target: { expr: string; refId: string };
  titleFormat: string;
  textFormat: string;
  tagKeys: string;
};

export type Board = Plain<
  Omit<raw.Dashboard, "panels" | "templating" | "annotations"> & {
    annotations: { list: Annotation[] };
    panels: Panels[];
    templating: { list: Variable[] };
  }
>;
